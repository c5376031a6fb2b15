"""What a user says about a concept, apart from its files."""

from __future__ import annotations

from pydantic import Field

from poolbench.config.base import StrictModel
from poolbench.contracts.bounds import CONCEPT_PATTERN, Flag, Label, Name, Seed

#: Seed words, and triggers, of one concept.
MAX_WORDS = 1_000


class ConceptSettings(StrictModel):
    """The settings of one concept.

    Attributes:
        id: Name for `--concepts`.
        definition: What makes a passage positive.
        rewriter: Makes a negative of each positive by deleting the markers of a built-in matched concept.
        neighbours: Concepts of D3, the linguistically distant one first; none, one or two.
        seed_words: Words that no negative should contain.
        triggers: Lemmas that express the concept, for strategies that use a lexicon of the concept.
        sensitive: Whether its passages, vectors and texts are restricted.
        licence: Licence of the texts that name none.
        seed: Seed of the split into train, test and scorer.
    """

    id: str = Field(min_length=2, max_length=40, pattern=CONCEPT_PATTERN)
    definition: Label = ""
    rewriter: Label = ""
    neighbours: tuple[Name, ...] = Field((), max_length=2)
    seed_words: tuple[Name, ...] = Field((), max_length=MAX_WORDS)
    triggers: tuple[Name, ...] = Field((), max_length=MAX_WORDS)
    sensitive: Flag = False
    licence: Label = ""
    seed: Seed = 0
