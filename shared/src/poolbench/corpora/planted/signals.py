"""How each concept shows itself: markers in sentence patterns, and where in a passage they stand.

A pattern is a sentence with ``{slots}`` that the lexicon fills and ``<markers>`` that carry the concept. A
matched concept lists pairs (positive, its rewrite without the concept); the others list patterns per class.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from random import Random

from poolbench.concepts import CONCEPTS
from poolbench.corpora.planted.lexicon import load_yaml

Pattern = tuple[str, str]
"""Positive and negative form of one sentence; they are filled with the same words."""


@dataclass(frozen=True)
class Signal:
    """The planted form of a concept.

    Attributes:
        placement: Where marked sentences stand, a key of `PLACEMENTS`.
        pairs: Patterns of a matched concept (empty for the others).
        positive: Patterns of positives of an independent concept.
        negative: Patterns that its negatives have in the same places.
        words: Slots of the concept's own, e.g. its sentiment adjectives.
    """

    concept: str
    placement: str
    pairs: tuple[Pattern, ...] = ()
    positive: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def matched(self) -> bool:
        """Whether positives and negatives come in pairs."""
        return bool(self.pairs)

    def patterns(self, label: int) -> tuple[str, ...]:
        """Sentence patterns of one class."""
        if self.matched:
            return tuple(pair[1 - label] for pair in self.pairs)
        return self.positive if label else self.negative


@cache
def load_signal(concept: str) -> Signal:
    """The planted form of a concept of the registry."""
    raw = load_yaml("signals", f"{concept}.yaml")
    return Signal(
        concept=concept,
        placement=raw["placement"],
        pairs=tuple((positive, negative) for positive, negative in raw.get("pairs", ())),
        positive=tuple(raw.get("positive", ())),
        negative=tuple(raw.get("negative", ())),
        words={slot: tuple(words) for slot, words in raw.get("words", {}).items()},
    )


@cache
def planted_concepts() -> tuple[str, ...]:
    """Concepts that have a planted form."""
    folder = files("poolbench.corpora.planted").joinpath("signals")
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


# Concepts whose marked sentences are ordinary prose in passages of any other concept.
_EVERYDAY = ("causation", "conditionality", "contrast", "hedging", "negation_density")


@cache
def distractors(concept: str) -> tuple[str, ...]:
    """Sentence patterns of other concepts, which both classes of a concept have among their plain sentences.

    Without them any connective would tell the classes of a discourse concept apart, and its scorer would
    answer to its neighbours.
    """
    seeds = [word.lower() for word in CONCEPTS.get(concept).seed_words]
    others = (load_signal(other) for other in _EVERYDAY if other != concept)
    patterns = (re.sub("[<>]", "", pattern) for other in others for pattern in other.patterns(1))
    return tuple(pattern for pattern in patterns if not any(seed in pattern.lower() for seed in seeds))


def _some(rng: Random, num_sentences: int, share: float) -> set[int]:
    return {index for index in range(num_sentences) if rng.random() < share}


def _third(num_sentences: int, which: int) -> set[int]:
    return set(range(num_sentences * which // 3, num_sentences * (which + 1) // 3))


# Each placement marks one of the first two sentences, so that a text cut to 40 tokens still shows its class
# (part a of the scorer gate); beyond that they differ, so that different pooling strategies win.
PLACEMENTS: Mapping[str, Callable[[Random, int], set[int]]] = {
    "every": lambda rng, n: set(range(n)),
    "spread": lambda rng, n: {rng.randrange(2), n // 2, n - 1} | _some(rng, n, 0.5),
    "early": lambda rng, n: {0, 1} | _third(n, 0) | _some(rng, n, 0.1),
    "middle": lambda rng, n: {1} | _third(n, 1) | _some(rng, n - 1, 0.3),
    "late": lambda rng, n: ({1} | _third(n, 2) | _some(rng, n, 0.3)) - {0},
}
"""Name to a function of generator and number of sentences giving the indices of marked sentences."""
