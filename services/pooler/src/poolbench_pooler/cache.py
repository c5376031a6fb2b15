"""Parses of texts met before, by content: a passage that several tables or requests hold is parsed once."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

#: Annotation columns of one text, all of length W; keywords apart, which depend on other texts too.
Columns = dict[str, list[Any]]

MAX_WORDS = 500_000
"""Words that are kept: about 1,300 passages of the card's length, and some 60 MB."""


class ParseCache:
    """The texts used last, up to a number of words.

    Args:
        max_words: Words of all texts together; the text used longest ago goes first.
    """

    def __init__(self, max_words: int = MAX_WORDS) -> None:
        self._max_words = max_words
        self._num_words = 0
        self._known: OrderedDict[bytes, Columns] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, text: str) -> Columns | None:
        """The columns of a text, or None if it is not known any more."""
        key = _digest(text)
        if key in self._known:
            self._known.move_to_end(key)
        return self._known.get(key)

    def put(self, text: str, columns: Columns) -> None:
        """Keeps the columns of a text; one that is too long by itself is not kept."""
        key, size = _digest(text), _size(columns)
        if key in self._known or size > self._max_words:
            return
        self._known[key] = columns
        self._num_words += size
        while self._num_words > self._max_words:
            self._num_words -= _size(self._known.popitem(last=False)[1])


def _digest(text: str) -> bytes:
    # A text that is no valid Unicode is refused later, by its name.
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


def _size(columns: Columns) -> int:
    return 1 + len(columns["word_start"])  # a text without words takes room as well
