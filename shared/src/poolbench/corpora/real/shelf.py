"""Refusal of near-duplicates while a corpus is chosen."""

from collections import Counter, defaultdict

from poolbench.corpora.checks.content import NEAR_DUPLICATE
from poolbench.corpora.text import shingles

SHARED_LIMIT = NEAR_DUPLICATE / 2
"""Half of what the validator allows: a rewritten member shares more with its neighbours than its positive."""


class Shelf:
    """Passages chosen so far, as 8-grams, so that a new one is compared with all of them at once."""

    def __init__(self) -> None:
        self._holders: dict[int, list[int]] = defaultdict(list)
        self._sizes: list[int] = []

    def accepts(self, text: str) -> bool:
        """Whether the text shares few 8-grams with every passage on the shelf; if so, it is put there."""
        grams = shingles(text)
        shared = Counter(index for gram in grams for index in self._holders.get(gram, ()))
        if any(count >= SHARED_LIMIT * min(len(grams), self._sizes[index]) for index, count in shared.items()):
            return False
        for gram in grams:
            self._holders[gram].append(len(self._sizes))
        self._sizes.append(len(grams))
        return True
