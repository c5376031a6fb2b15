"""Passages of whole sentences cut from longer texts, and the refusal of near-duplicates among them."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from random import Random

from poolbench_corpora.near import NEAR_DUPLICATE, TokenCounter, shingles

# A sentence ends at its mark and closing quotes, before white space and what can start a sentence; a paragraph
# break ends one always. Titles and single initials do not end sentences. White space is tested first, because it is
# rare: this makes the search several times faster.
_SENTENCE_END = re.compile(
    r"(?=\s)(?<!\bMr\.)(?<!\bMrs\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\bNo\.)(?<!\bvs\.)(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\b[A-Z]\.)"
    r"(?<=[.!?:;\"'”’)])\s+(?=[\"'“‘(\[]?[A-Z0-9])|\n\n+"
)


def sentences(text: str) -> list[tuple[int, int]]:
    """Return character ranges of the sentences of a text, without the white space between them."""
    breaks = [match.span() for match in _SENTENCE_END.finditer(text)]
    starts = [0, *(end for _, end in breaks)]
    ends = [*(start for start, _ in breaks), len(text)]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if text[start:end].strip()]


def windows(
    text: str,
    window: tuple[int, int],
    count_tokens: TokenCounter,
    rng: Random,
    missed: Callable[[str], None] = lambda _: None,
) -> Iterator[str]:
    """Yield consecutive passages of whole sentences, each within the window of (smallest, largest) tokens.

    `rng` draws the target length of each passage, so that length carries no label. A text that fits as a whole
    is one passage; a run of sentences that misses the window is left out, and `missed` is called with it.
    """
    if len(text) <= window[1] * 8 and window[0] <= count_tokens(text) <= window[1]:
        yield text
        return
    spans = sentences(text)
    position = 0
    while position < len(spans):
        end = _take(text, spans, position, rng.uniform(*_aims(window)), count_tokens)
        passage = text[spans[position][0] : spans[end - 1][1]]
        if window[0] <= count_tokens(passage) <= window[1]:
            yield passage
        else:
            missed(passage)
        position = end


def _aims(window: tuple[int, int]) -> tuple[float, float]:
    low, high = window
    return low + 0.1 * (high - low), low + 0.8 * (high - low)


def _take(text: str, spans: list[tuple[int, int]], position: int, aim: float, count_tokens: TokenCounter) -> int:
    """Return the index after the last sentence of a passage that starts at `position` and reaches `aim` tokens."""
    num_tokens = 0
    for index in range(position, len(spans)):
        num_tokens += count_tokens(text[spans[index][0] : spans[index][1]])
        if num_tokens >= aim:
            return index + 1
    return len(spans)


SHARED_LIMIT = NEAR_DUPLICATE / 2
"""Half of what the validator allows: a rewrite shares more 8-grams with other passages than its positive does."""


class ChosenPassages:
    """Passages chosen so far, as 8-grams, so that a new one is compared with all of them at once."""

    def __init__(self) -> None:
        self._holders: dict[int, list[int]] = defaultdict(list)
        self._sizes: list[int] = []

    def accepts(self, text: str) -> bool:
        """Return whether the text shares few 8-grams with each chosen passage; if so, add it to them."""
        grams = shingles(text)
        shared = Counter(index for gram in grams for index in self._holders.get(gram, ()))
        if any(count >= SHARED_LIMIT * min(len(grams), self._sizes[index]) for index, count in shared.items()):
            return False
        for gram in grams:
            self._holders[gram].append(len(self._sizes))
        self._sizes.append(len(grams))
        return True
