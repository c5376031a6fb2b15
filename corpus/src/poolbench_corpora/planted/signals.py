"""The planted form of each concept: sentence patterns with markers, and their places in a passage.

A pattern is a sentence with `{slots}` that the lexicon fills and `<markers>` that carry the concept. A matched concept
lists pairs (positive, its rewrite without the concept); the others list patterns per class. Negatives have the form of
positives, with as many words, letters, marks and sentences, so that only the concept separates the classes.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from random import Random

from poolbench.concepts import CONCEPTS
from poolbench_corpora.planted.grammar import Use, load_yaml

PLANTED_REVISION = "planted-4"
"""Changes with every change of lexicons, grammar or placements, and with it the random draws of every passage.

A change of one concept's signal raises the `revision` in its file instead, so that the other concepts keep theirs.
"""

Pattern = tuple[str, str]
"""Positive and negative form of one sentence, filled with the same words."""

Patterns = tuple[tuple[str, ...], ...]
"""Sentence patterns, each with one form per passage of a document."""


@dataclass(frozen=True)
class Signal:
    """The planted form of a concept.

    A matched concept has `pairs` of patterns. Other concepts have `positive` and `negative` patterns.
    """

    concept: str
    placement: str  # of marked sentences, a key of `PLACEMENTS`
    revision: str = PLANTED_REVISION
    pairs: tuple[Pattern, ...] = ()
    positive: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()  # patterns of negatives, in the same places
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # own slots, e.g. sentiment adjectives
    common: int | None = None  # how many of the patterns a corpus draws from, in the order of the file; None for all
    scorer: tuple[Pattern, ...] = ()  # further pairs, which only texts for the scorer have

    @property
    def matched(self) -> bool:
        """Return whether positives and negatives come in pairs."""
        return bool(self.pairs)

    def patterns(self, label: int) -> tuple[str, ...]:
        """Return the sentence patterns of one class."""
        if self.matched:
            return tuple(pair[1 - label] for pair in self.pairs)
        return self.positive if label else self.negative

    def forms(self, labels: tuple[int, ...], use: Use) -> Patterns:
        """Return the patterns for the passages of one document, with one form per label.

        Texts for a scorer use all patterns. Other texts use the first `common` patterns.
        """
        if use != "scorer":
            return tuple(zip(*(self.patterns(label)[: self.common] for label in labels), strict=True))
        more = tuple(tuple(pair[1 - label] for label in labels) for pair in self.scorer)
        return (*zip(*map(self.patterns, labels), strict=True), *more)


@cache
def load_signal(concept: str) -> Signal:
    """Return the planted form of a concept of the registry."""
    raw = load_yaml("signals", f"{concept}.yaml")
    return Signal(
        concept=concept,
        placement=raw["placement"],
        revision=raw.get("revision", PLANTED_REVISION),
        pairs=tuple((positive, negative) for positive, negative in raw.get("pairs", ())),
        positive=tuple(raw.get("positive", ())),
        negative=tuple(raw.get("negative", ())),
        words={slot: tuple(words) for slot, words in raw.get("words", {}).items()},
        common=raw.get("common"),
        scorer=tuple((positive, negative) for positive, negative in raw.get("scorer", ())),
    )


def planted_revision(concepts: Iterable[str]) -> str:
    """Return the revision of the planted passages of these concepts; several are listed."""
    return ", ".join(sorted({load_signal(concept).revision for concept in concepts})) or PLANTED_REVISION


@cache
def planted_concepts() -> tuple[str, ...]:
    """Return the concepts that have a planted form."""
    folder = files("poolbench_corpora.planted").joinpath("signals")
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


# Concepts whose marked sentences are ordinary prose in passages of any other concept.
_EVERYDAY = ("causation", "conditionality", "contrast", "hedging", "negation_density")


@cache
def distractors(concept: str) -> tuple[str, ...]:
    """Return sentence patterns of other concepts, which both classes have among their plain sentences.

    Without them any connective would separate the classes of a discourse concept, and its scorer would detect
    neighbouring concepts.
    """
    seeds = [word.lower() for word in CONCEPTS.get(concept).seed_words]
    others = (load_signal(other) for other in _EVERYDAY if other != concept)
    patterns = (re.sub("[<>]", "", pattern) for other in others for pattern in other.patterns(1))
    return tuple(pattern for pattern in patterns if not any(seed in pattern.lower() for seed in seeds))


@cache
def neutral() -> tuple[str, ...]:
    """Return the negative patterns of everyday concepts. Both classes have them: else they would mark negatives."""
    return tuple(pattern for concept in _EVERYDAY for pattern in load_signal(concept).patterns(0))


def _some(rng: Random, num_sentences: int, share: float) -> set[int]:
    return {index for index in range(num_sentences) if rng.random() < share}


def _third(num_sentences: int, which: int) -> set[int]:
    return set(range(num_sentences * which // 3, num_sentences * (which + 1) // 3))


# Each placement marks one of the first two sentences, so that a text cut to 40 tokens still shows its class (part (a)
# of the scorer gate). Otherwise placements differ, so that different pooling strategies win.
PLACEMENTS: Mapping[str, Callable[[Random, int], set[int]]] = {
    "every": lambda rng, n: set(range(n)),
    "spread": lambda rng, n: {rng.randrange(2), n // 2, n - 1} | _some(rng, n, 0.7),
    "half": lambda rng, n: {rng.randrange(2), n // 2, n - 1} | _some(rng, n, 0.4),
    "early": lambda rng, n: {0, 1} | _third(n, 0) | _some(rng, n, 0.1),
    "middle": lambda rng, n: {1} | _third(n, 1) | _some(rng, n - 1, 0.4),
    "late": lambda rng, n: ({1} | _third(n, 2) | _some(rng, n, 0.5)) - {0},
}
"""By name, a function from generator and number of sentences to the indices of marked sentences."""
