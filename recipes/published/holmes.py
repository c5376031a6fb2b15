"""Claims of the paper on Holmes (Waldis et al., 2024) that a recorded table of scores can check.

A claim is a contrast: a difference of mean winning rates, in points. It is taken under every definition of the winning
rate, with an interval from a bootstrap over phenomena. It holds if the interval lies above 0, and does not hold if it
lies below 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from poolbench.statistics.bootstrap import percentile_interval
from poolbench_driver.pages.text import items, paragraph, table, with_interval
from poolbench_driver.statistics.winning_rate import (
    discriminability,
    present_means,
    scaled_ranks,
    winning_rate_resamples,
)
from poolbench_driver.suites.holmes.recordings import DEFINITIONS, ScoreTable

#: Models of at most 220 million parameters, which the paper compares by architecture.
ENCODERS = (
    "bert-base-uncased", "roberta-base", "albert-base-v2", "google/electra-base-discriminator",
    "microsoft/deberta-base", "microsoft/deberta-v3-base",
)  # fmt: skip
DECODERS = (
    "gpt2", "EleutherAI/pythia-70m", "EleutherAI/pythia-70m-deduped", "EleutherAI/pythia-160m",
    "EleutherAI/pythia-160m-deduped",
)  # fmt: skip
#: The smallest and the largest model of a series.
SERIES = {
    "Pythia": ("EleutherAI/pythia-70m", "EleutherAI/pythia-12b"),
    "T5": ("google/t5-small-lm-adapt", "google/t5-xxl-lm-adapt"),
}
#: Models after instruction tuning, each with the model before it, as in the table of the paper.
TUNED = (
    ("meta-llama/Llama-2-7b-chat-hf", "meta-llama/Llama-2-7b-hf"),
    ("google/flan-t5-xxl", "google/t5-xxl-lm-adapt"),
    ("databricks/dolly-v2-12b", "EleutherAI/pythia-12b"),
    ("allenai/tulu-2-13b", "meta-llama/Llama-2-13b-hf"),
    ("microsoft/Orca-2-13b", "meta-llama/Llama-2-13b-hf"),
    ("meta-llama/Llama-2-13b-chat-hf", "meta-llama/Llama-2-13b-hf"),
    ("lmsys/vicuna-13b-v1.5", "meta-llama/Llama-2-13b-hf"),
    ("google/flan-ul2", "google/ul2"),
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mistralai/Mixtral-8x7B-v0.1"),
    ("allenai/tulu-2-70b", "meta-llama/Llama-2-70b-hf"),
    ("meta-llama/Llama-2-70b-chat-hf", "meta-llama/Llama-2-70b-hf"),
)
#: The types that the paper names for the effects of size and instruction tuning, and the others.
FORM, MEANING = ("morphology", "syntax"), ("semantics", "reasoning", "discourse")
UNCHECKED = (
    "Selectivity: the table has no scores of control tasks.",
    "Accuracy of single tokens for parts of speech: the table has no predictions.",
    "Agreement with benchmarks that prompt: the table has no scores of those; `leaderboard --beside` reads them.",
)
#: A family before instruction tuning, one that the paper finds better after it, and one that it finds worse.
BASE_13B, VICUNA, TULU = "meta-llama/Llama-2-13b-hf", "lmsys/vicuna-13b-v1.5", "allenai/tulu-2-13b"


@dataclass(frozen=True)
class Term:
    """The mean winning rate of some models over some types, each type with the same weight; "" is all sets."""

    models: Sequence[str]
    kinds: Sequence[str] = ("",)


@dataclass(frozen=True)
class Claim:
    """A claim, and the figure that tells: the sum of some terms minus that of others."""

    text: str
    figure: str
    plus: Sequence[Term]
    minus: Sequence[Term]

    @property
    def terms(self) -> list[Term]:
        """Return all terms."""
        return [*self.plus, *self.minus]


class Rates:
    """Winning rates of the models under one definition, in percent: the rates themselves, then those of a bootstrap.

    Ranks that are scaled by model (`column`) keep the scale of all sets within a type, as in the figures of the paper.
    """

    def __init__(self, scores: ScoreTable, definition: str) -> None:
        self.scores, self.scale = scores, DEFINITIONS[definition]
        self._places = {model: number for number, model in enumerate(scores.models)}
        self.of = cache(self._of)

    def mean(self, term: Term) -> np.ndarray:
        """Return a mean and its resamples [1 + R]."""
        places = [self._places[model] for model in term.models]
        return np.asarray(np.mean([self.of(kind)[:, places].mean(axis=1) for kind in term.kinds], axis=0))

    def contrast(self, claim: Claim) -> np.ndarray:
        """Return the figure of a claim and its resamples [1 + R]."""
        plus, minus = (sum(map(self.mean, terms)) for terms in (claim.plus, claim.minus))
        return np.asarray(plus - minus)

    def _of(self, kind: str) -> np.ndarray:
        weights = self.scores.weights(kind)
        if kind and self.scale == "column":
            return (
                100 * present_means(scaled_ranks(self.scores.scores, "column")[:, self.scores.types == kind], weights).T
            )
        return 100 * winning_rate_resamples(self.scores.of(kind), weights, self.scale)


def claims_markdown(scores: ScoreTable) -> str:
    """Return which claims hold under which definition as text, and those that the table cannot check."""
    rates = {name: Rates(scores, name) for name in DEFINITIONS}
    head = ["claim", "figure, in points", *DEFINITIONS]
    lines = [[claim.text, claim.figure, *_cells(claim, list(rates.values()))] for claim in _claims(scores)]
    board = table(head, lines) if lines else "The table has none of the models that these claims compare."
    intro = paragraph(
        "Differences of mean winning rates, with intervals of 95 % from a bootstrap over phenomena, within a type over "
        "those of the type. A claim holds where the interval lies above 0, and fails where it lies below 0; else it is "
        "open. Within a type, `column` keeps the scale of all sets."
    )
    others = [*_leaders(rates), *_by_type(scores), *(f"Not checkable: {line}" for line in UNCHECKED)]
    return "\n\n".join(["## Claims of the paper", intro, board, items(others)])


def _claims(scores: ScoreTable) -> Iterator[Claim]:
    """Yield the claims on architecture, size and instruction tuning, overall and by type."""
    model_names = set(scores.models)
    encoders, decoders = ([name for name in names if name in model_names] for names in (ENCODERS, DECODERS))
    pairs = [pair for pair in TUNED if model_names.issuperset(pair)]
    tuned, base = ([pair[side] for pair in pairs] for side in (0, 1))
    series = {name: models for name, models in SERIES.items() if model_names.issuperset(models)}
    typed = set(scores.kinds).issuperset(FORM + MEANING)
    for kind in ("", *scores.kinds):
        if encoders and decoders:
            figure = f"{len(encoders)} encoders minus {len(decoders)} decoders"
            text = f"encoders know more than decoders of their size{_in(kind, scores)}"
            yield Claim(text, figure, [Term(encoders, [kind])], [Term(decoders, [kind])])
    for name, models in series.items():
        first, last = models[:1], models[-1:]
        yield Claim(f"larger models know more: {name}", "largest minus smallest", [Term(last)], [Term(first)])
        if typed:
            text = f"size helps {' and '.join(FORM)} more than the rest: {name}"
            plus, minus = [Term(last, FORM), Term(first, MEANING)], [Term(first, FORM), Term(last, MEANING)]
            yield Claim(text, "gain in these minus gain in the others", plus, minus)
    for kind in ("", *scores.kinds):
        if pairs:
            figure = f"{len(pairs)} tuned models minus those before"
            yield Claim(
                f"instruction tuning helps{_in(kind, scores)}", figure, [Term(tuned, [kind])], [Term(base, [kind])]
            )
    if model_names.issuperset((BASE_13B, VICUNA, TULU)):
        yield Claim("Vicuna gains from its tuning", "after minus before", [Term([VICUNA])], [Term([BASE_13B])])
        yield Claim("Tülu loses by its tuning", "before minus after", [Term([BASE_13B])], [Term([TULU])])


def _in(kind: str, scores: ScoreTable) -> str:
    return f", in {kind} ({len(set(scores.phenomena[scores.types == kind]))} phenomena)" if kind else ""


def _cells(claim: Claim, rates: Sequence[Rates]) -> Iterator[str]:
    """Yield figure, interval and verdict for each definition."""
    for definition in rates:
        value, *samples = definition.contrast(claim)
        ends = percentile_interval(np.array(samples)) if np.isfinite(value) else None
        yield "no figure" if ends is None else f"{with_interval(value, ends, '+.1f')}, {_verdict(*ends)}"


def _verdict(low: float, high: float) -> str:
    return "holds" if low > 0 else "fails" if high < 0 else "open"


def _leaders(rates: Mapping[str, Rates]) -> Iterator[str]:
    """Yield for each definition whether one model leads overall and in every type."""
    for name, definition in rates.items():
        best = {kind: _best(definition, kind) for kind in ("", *definition.scores.kinds)}
        others = ", ".join(f"{kind} {best[kind]}" for kind in definition.scores.kinds if best[kind] != best[""])
        verdict = "holds" if others else "fails"
        yield f"No model leads everywhere ({name}): {verdict}. Overall leads {best['']}; elsewhere {others or 'it too'}"


def _best(rates: Rates, kind: str) -> str:
    first = rates.of(kind)[0]
    return rates.scores.models[int(np.nanargmax(first))] if np.isfinite(first).any() else "none"


def _by_type(scores: ScoreTable) -> Iterator[str]:
    """Yield mean scores and discriminability by type, which do not depend on the definition of the winning rate."""
    means = present_means(scores.scores.T)
    averages = ", ".join(f"{kind} {np.nanmean(means[scores.types == kind]):.3f}" for kind in scores.kinds)
    line = f"Mean scores: {averages}; overall {np.nanmean(means):.3f}"
    if set(scores.kinds).issuperset(FORM + MEANING):
        part = {
            kind: present_means(means[None, scores.types == kind], scores.weights(kind))[0] for kind in scores.kinds
        }
        form, meaning = (np.mean([part[kind] for kind in kinds], axis=0) for kinds in (FORM, MEANING))
        value, *samples = form - meaning
        if ends := percentile_interval(np.array(samples)):
            difference = f"{with_interval(value, ends, '+.3f')}, {_verdict(*ends)}"
            line += f". {' and '.join(FORM).capitalize()} are known better than the rest: {difference}"
    yield line
    taus = discriminability(scores.scores)
    type_taus = {kind: taus[(scores.types == kind) & np.isfinite(taus)] for kind in scores.kinds}
    averages = ", ".join(f"{kind} {kind_taus.mean():.2f}" for kind, kind_taus in type_taus.items() if kind_taus.size)
    overall = f"; overall {np.nanmean(taus):.2f}" if averages else "none"
    yield f"Discriminability, Kendall's tau of the order on a set with the overall order: {averages}{overall}"
