"""The one alignment rule: a subword belongs to a word when their character ranges overlap."""

from collections.abc import Sequence

import numpy as np


def word_span_of_tokens(
    offsets: np.ndarray, word_start: np.ndarray, word_end: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the words that each token overlaps, as half-open index ranges.

    Ranges `[s, e)` and `[a, b)` overlap when `s < b` and `a < e`. A range that includes the space before a word
    belongs to that word only, and a range without width (trimmed white space, special tokens at 0:0) belongs to a word
    only when strictly inside it.

    Args:
        offsets: Character range of each token, [T, 2].
        word_start: First character of each word, ascending, [W].
        word_end: Character after each word, ascending, [W].

    Returns:
        `first` and `stop`, both [T]: token t overlaps words `first[t] <= w < stop[t]`.
    """
    first = np.searchsorted(word_end, offsets[:, 0], side="right")
    stop = np.searchsorted(word_start, offsets[:, 1], side="left")
    return first, np.maximum(stop, first)


def tokens_of_words(
    offsets: np.ndarray, word_start: np.ndarray, word_end: np.ndarray, chosen_W: Sequence[bool] | np.ndarray
) -> np.ndarray:
    """Return which tokens overlap at least one chosen word, as booleans [T]."""
    first, stop = word_span_of_tokens(offsets, word_start, word_end)
    counts = np.concatenate([[0], np.cumsum(np.asarray(chosen_W, dtype=np.int64))])
    return counts[stop] > counts[first]


def first_tokens_of_words(offsets: np.ndarray, word_start: np.ndarray, word_end: np.ndarray) -> np.ndarray:
    """Return which tokens are the first to overlap some word, as ascending indices into `offsets`.

    A token is the first of a word when it reaches beyond every word that the tokens before it overlapped.
    """
    first, stop = word_span_of_tokens(offsets, word_start, word_end)
    reached = np.maximum.accumulate(np.concatenate([[0], stop]))[:-1]
    return np.flatnonzero((stop > first) & (stop > reached))
