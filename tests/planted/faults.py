"""Deliberate faults in pooling, each with the signals and strategies that must find it out."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from poolbench.pooling import linguistic, relations
from poolbench.pooling.context import Reduction, TokenContext, Weights
from poolbench.pooling.registry import STRATEGIES

Apply = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Fault:
    """One fault: how it is made, and what reads the signal that gives it away."""

    name: str
    signal: str
    strategy: str
    apply: Apply


def _instead(strategy: str, function: Callable[[TokenContext], Any]) -> Apply:
    """Return a change of one strategy's function."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        original, get = STRATEGIES.get(strategy), STRATEGIES.get
        faulty = replace(original, function=function, params={})
        patch.setattr(STRATEGIES, "get", lambda name: faulty if name == strategy else get(name))

    return apply


def _mean(context: TokenContext) -> Weights:
    return context.mean_of(context.real)


def _with_special(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TokenContext, "real", property(lambda context: np.arange(len(context.special))), raising=True)


def _shifted(patch: pytest.MonkeyPatch) -> None:
    right = TokenContext.real_tokens_of

    def shifted(context: TokenContext, words: Any) -> np.ndarray:
        found = right(context, words) + 1
        return found[found <= context.real[-1]]

    patch.setattr(TokenContext, "real_tokens_of", shifted)


def _without_conjuncts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(linguistic, "CLAUSE_AND_MODIFIER", relations.CLAUSE_AND_MODIFIER - {"conj"})


def _uncorrected(context: TokenContext) -> Weights:
    """As the reference weighs: the mean of attention over queries, which favours early tokens."""
    later = np.cumsum((1.0 / np.arange(1, len(context.real) + 1))[::-1])[::-1]
    values = np.zeros(len(context.special))
    values[context.real] = later / later.sum()
    return Weights(values)


FAULTS = (
    Fault("special tokens count as real", "dense", "A2_max", _with_special),
    Fault("tokens of words are those of the next word", "entity", "L3_entity", _shifted),
    Fault("conjuncts are no modifiers", "syntax", "L2_dependency_rel", _without_conjuncts),
    Fault("the maximum is a minimum", "sparse", "A2_max", _instead("A2_max", lambda _: Reduction("min"))),
    Fault("the minimum is a maximum", "sparse", "A3_min", _instead("A3_min", lambda _: Reduction("max"))),
    Fault("the last token is the one before it", "end", "P1_last_token",
          _instead("P1_last_token", lambda c: c.mean_of(c.real[-2:-1]))),
    Fault("the first window is one token short", "start", "W1_first_k",
          _instead("W1_first_k", lambda c: c.mean_of(c.real[:15]))),
    Fault("the last window is one token short", "edge", "W2_last_k",
          _instead("W2_last_k", lambda c: c.mean_of(c.real[-15:]))),
    Fault("the middle window starts at the middle", "middle", "W3_middle_k",
          _instead("W3_middle_k", lambda c: c.mean_of(c.real[len(c.real) // 2 :][:16]))),
    Fault("only the first chunk counts", "start", "W4_hierarchical",
          _instead("W4_hierarchical", lambda c: c.mean_of(np.array_split(c.real, 4)[0]))),
    Fault("norms do not count", "loud", "A4_norm_weighted", _instead("A4_norm_weighted", _mean)),
    Fault("attention is not corrected for position", "start", "S1_attention", _instead("S1_attention", _uncorrected)),
    Fault("sentences do not count", "sentence", "L6_sentence", _instead("L6_sentence", _mean)),
    Fault("every word is a content word", "content", "L1_pos_filtered", _instead("L1_pos_filtered", _mean)),
)  # fmt: skip
