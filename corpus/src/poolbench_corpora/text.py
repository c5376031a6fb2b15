"""Compare texts: token differences and 8-gram shingles."""

import re
from collections import Counter
from collections.abc import Callable

from poolbench.texts import words_of

TokenCounter = Callable[[str], int]

SHINGLE = 8

MAX_PAIR_DIFFERENCE = 25
"""Tokens by which the members of a matched pair may differ."""


def token_difference(first: str, second: str) -> int:
    """Count the tokens of either text that the other lacks: the larger of the two multiset differences.

    This is a lower bound of the token edit distance, and equal to it for rewrites that keep the order of words.
    """
    a, b = Counter(words_of(first)), Counter(words_of(second))
    return max((a - b).total(), (b - a).total())


def shingles(text: str) -> frozenset[int]:
    """Return hashes of all runs of `SHINGLE` words; a text of fewer words has none."""
    words = re.findall(r"\w+", text.lower())
    return frozenset(hash(tuple(words[i : i + SHINGLE])) for i in range(len(words) - SHINGLE + 1))
