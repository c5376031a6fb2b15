"""What readers yield: samples of a probing set, and notes on what they leave out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_NOTES = 50
"""Notes that are kept of one set; the others are counted."""


@dataclass(frozen=True)
class Span:
    """A character range of a text."""

    text: str
    start: int
    end: int

    @property
    def words(self) -> str:
        """Return the characters of the range."""
        return self.text[self.start : self.end]


@dataclass(frozen=True)
class Sample:
    """One instance as a reader yields it.

    Attributes:
        id: Unique in the set.
        first: The spans whose mean is the first vector.
        second: Likewise of a pair; empty for others.
        split: train, dev or test; None where the source gives none.
        group: Samples of one group stay in one fold; by default each is a group of its own.
        word: Word type of a span, for control labels.
        where: File and line, for notes.
    """

    id: str
    first: tuple[Span, ...]
    second: tuple[Span, ...] = ()
    label: str | None = None
    value: float | None = None
    split: str | None = None
    group: str = ""
    word: str | None = None
    where: str = ""


@dataclass(frozen=True)
class Note:
    """Why a sample, a file or a set was left out."""

    where: str  # file and line, or the set
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}" if self.where else self.reason


def first_notes(notes: Sequence[Note]) -> tuple[Note, ...]:
    """Return the first notes, and the number of the others."""
    more = len(notes) - MAX_NOTES
    return (*notes[:MAX_NOTES], Note("", f"{more:,} more notes")) if more > 0 else tuple(notes)


def whole(text: str) -> tuple[Span, ...]:
    """Return a whole text as a span."""
    return (Span(text, 0, len(text)),)


def word_type(*spans: Span) -> str:
    """Return the word type of a span, or of the pieces of one: its characters in lower case."""
    return " ".join(span.words for span in spans).lower()
