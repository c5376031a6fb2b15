"""Passages of whole sentences around a marker, at a drawn distance from it."""

from collections.abc import Callable, Iterator
from functools import cache
from random import Random

from recipes.passages.windows import sentences

from poolbench_corpora.near import TokenCounter

#: Largest distance of a marker from its drawn place. After a passage there is little room before the next marker: to
#: take it all the same would put markers at the start of passages.
TOLERANCE = 0.2

Place = Callable[[str], float | None]
"""From a sentence to the place of its marker, 0 for its start and 1 for its end; None without a marker."""


def windows_around(
    text: str, window: tuple[int, int], count_tokens: TokenCounter, rng: Random, place: Place
) -> Iterator[str]:
    """Yield passages of whole sentences, each around one marker; no two share a sentence.

    For each marker a place in the passage is drawn, uniformly. Of all runs of sentences around the marker whose length
    is inside the window, the passage is the one that has the marker closest to that place. So a marker is as likely at
    the start of a passage as at its end, as far as sentences allow.

    Args:
        window: Smallest and largest number of tokens.
    """
    spans = sentences(text)
    count = cache(lambda index: count_tokens(text[slice(*spans[index])]))  # most sentences of a novel are in no passage
    first = 0
    for index, (start, end) in enumerate(spans):
        if index < first or (inside := place(text[start:end])) is None:
            continue
        aim = rng.random()
        runs = [
            (abs(_place(count, begin, index, stop, inside) - aim), begin, stop)
            for begin, stop in _runs(count, first, index, len(spans), window)
        ]
        distance, begin, stop = min(runs, default=(1.0, 0, 0))
        if distance <= TOLERANCE:
            yield text[spans[begin][0] : spans[stop - 1][1]]
            first = stop


def _runs(
    count: Callable[[int], int], first: int, index: int, num_sentences: int, window: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    """Yield the runs of sentences from `first` on that hold the sentence `index` and have an allowed length."""
    low, high = window
    before = 0
    for begin in range(index, first - 1, -1):
        before += count(begin)
        num_tokens = before
        for stop in range(index + 1, num_sentences + 1):
            num_tokens += count(stop - 1) if stop > index + 1 else 0
            if num_tokens > high:
                break
            if num_tokens >= low:
                yield begin, stop
        if before > high:
            return


def _place(count: Callable[[int], int], begin: int, index: int, stop: int, inside: float) -> float:
    """Return the place in a run of a marker that lies at `inside` of one of its sentences."""
    before = sum(map(count, range(begin, index)))
    return (before + inside * count(index)) / (before + sum(map(count, range(index, stop))))
