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
    """One instance as a reader yields it."""

    id: str  # unique in the set
    first: tuple[Span, ...]  # the spans whose mean is the first vector
    second: tuple[Span, ...] = ()  # likewise of a pair; empty for others
    label: str | None = None
    value: float | None = None
    split: str | None = None  # train, dev or test; None where the source gives none
    group: str = ""  # samples of one group stay in one fold; by default each is a group of its own
    word: str | None = None  # word type of a span, for control labels
    where: str = ""  # file and line, for notes


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
