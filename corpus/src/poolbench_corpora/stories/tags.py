"""Tags around the marked words of a story: `<subject>` and `</subject>`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from poolbench.errors import CorpusError

OPEN, CLOSE = "<subject>", "</subject>"
_TAG = re.compile(f"({OPEN}|{CLOSE})", re.I)

Range = tuple[int, int]


@dataclass(frozen=True)
class Tagged:
    """A story with its marked ranges."""

    text: str  # the story without tags
    marks: tuple[Range, ...]  # character ranges of the marked words in `text`, ascending
    marks_with_tags: tuple[Range, ...]  # the same ranges in the story with its tags


def parse_tags(story: str) -> Tagged:
    """Return a story without its tags, and the ranges that they marked.

    Raise CorpusError for a tag without its counterpart, a tag inside another, or a marked range without a word.
    """
    text, marks, with_tags = "", [], []
    place, start = 0, None
    for piece in _TAG.split(story):
        tag = piece.lower()
        if tag == OPEN:
            if start is not None:
                raise CorpusError(f"{OPEN} at character {place} stands inside another one")
            start = place + len(piece), len(text)
        elif tag == CLOSE:
            if start is None:
                raise CorpusError(f"{CLOSE} at character {place} has no {OPEN} before it")
            if not text[start[1] :].strip():
                raise CorpusError(f"the range that ends at character {place} is marked but has no word")
            marks.append((start[1], len(text)))
            with_tags.append((start[0], place))
            start = None
        else:
            text += piece
        place += len(piece)
    if start is not None:
        raise CorpusError(f"{OPEN} at character {start[0] - len(OPEN)} has no {CLOSE} after it")
    return Tagged(text, tuple(marks), tuple(with_tags))


def tagged(text: str, marks: Iterable[Range]) -> str:
    """Return a text with tags around its marked ranges, which ascend."""
    for start, end in reversed(list(marks)):
        text = f"{text[:start]}{OPEN}{text[start:end]}{CLOSE}{text[end:]}"
    return text
