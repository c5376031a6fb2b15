"""Cache of parsed texts, by content: a passage in several tables or requests is parsed once."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any

from cachetools import LRUCache

#: Annotation columns of one text, all of length W; keywords apart, which depend on other texts too.
Columns = dict[str, list[Any]]

MAX_WORDS = 500_000
"""Words that are kept: about 1,300 passages of the card's length, and some 60 MB."""


class ParseCache:
    """The texts used last, up to `max_words` words in all; the least recently used text is dropped first."""

    def __init__(self, max_words: int = MAX_WORDS) -> None:
        # A text without words takes room as well.
        self._known: LRUCache[bytes, Columns] = LRUCache(max_words, lambda columns: 1 + len(columns["word_start"]))

    def __len__(self) -> int:
        return len(self._known)

    def get(self, text: str) -> Columns | None:
        """Return the columns of a text, or None if they are not kept."""
        return self._known.get(_digest(text))

    def put(self, text: str, columns: Columns) -> None:
        """Keep the columns of a text, unless it alone has more words than the cache."""
        with suppress(ValueError):
            self._known[_digest(text)] = columns


def _digest(text: str) -> bytes:
    # A text that is no valid Unicode is refused later, by its name.
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
