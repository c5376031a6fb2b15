"""The input of a strategy for one passage (`TokenContext`), and its output: weights, parts or a reduction."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from poolbench.errors import CellError, InputError
from poolbench.pooling.signals import Signals
from poolbench.statuses import Status


def word_span_of_tokens(
    offsets: np.ndarray, word_start: np.ndarray, word_end: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the words that each token overlaps, as half-open index ranges.

    Ranges `[s, e)` and `[a, b)` overlap when `s < b` and `a < e`. A range that includes the space before a word belongs
    to that word only. A range without width (trimmed white space, special tokens at 0:0) belongs to a word only if it
    lies strictly inside the word.

    Args:
        offsets: Character range of each token, [T, 2].
        word_start: First character of each word, ascending, [W].
        word_end: Character after each word, ascending, [W].

    Returns:
        `first` and `stop`, both [T]. Token t overlaps the words `first[t] <= w < stop[t]`.
    """
    first = np.searchsorted(word_end, offsets[:, 0], side="right")
    stop = np.searchsorted(word_start, offsets[:, 1], side="left")
    return first, np.maximum(stop, first)


def tokens_of_words(
    offsets: np.ndarray, word_start: np.ndarray, word_end: np.ndarray, chosen_W: Sequence[bool] | np.ndarray
) -> np.ndarray:
    """Return a boolean mask [T] of the tokens that overlap at least one chosen word."""
    first, stop = word_span_of_tokens(offsets, word_start, word_end)
    counts = np.concatenate([[0], np.cumsum(np.asarray(chosen_W, dtype=np.int64))])
    return counts[stop] > counts[first]


def first_tokens_of_words(offsets: np.ndarray, word_start: np.ndarray, word_end: np.ndarray) -> np.ndarray:
    """Return the indices of the tokens that are the first to overlap some word, in ascending order.

    A token is the first of a word if it reaches beyond all words that earlier tokens overlap.
    """
    first, stop = word_span_of_tokens(offsets, word_start, word_end)
    reached = np.maximum.accumulate(np.concatenate([[0], stop]))[:-1]
    return np.flatnonzero((stop > first) & (stop > reached))


@dataclass(frozen=True)
class Weights:
    """Weights over all positions of a passage. The pooled vector is the weighted sum of the hidden states."""

    values: np.ndarray  # float64 [T]; zero on special tokens unless a strategy reads them on purpose
    applied: bool = True  # false when the strategy found nothing to select and these are A1's weights
    token_share: float = 1.0  # share of the passage's real tokens that the strategy selected


@dataclass(frozen=True)
class Parts:
    """Weights [P, T] of the P pooled vectors of a passage, which a readout combines into one vector."""

    values: np.ndarray
    applied: bool
    token_share: float


@dataclass(frozen=True)
class Reduction:
    """An element-wise reduction over the real tokens (`max`, `min` or `median`)."""

    op: str
    applied: bool = True
    token_share: float = 1.0


@dataclass(frozen=True)
class Words:
    """The annotation of a passage: its W words, with their character ranges and linguistic columns."""

    start: np.ndarray
    end: np.ndarray
    upos: Sequence[str]
    dep: Sequence[str]
    head: Sequence[int]
    lemma: Sequence[str]
    entity: Sequence[str]
    sentence: np.ndarray
    clause: np.ndarray
    keyword: np.ndarray | None  # None if the annotation was made without document frequencies

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "Words":
        """Parse a row of the ANNOTATIONS table. Raise InputError if word ranges are not ascending."""
        start, end = (np.asarray(row[name], dtype=np.int64) for name in ("word_start", "word_end"))
        if np.any(np.diff(start) < 0) or np.any(np.diff(end) < 0):
            raise InputError(f"annotation of {row.get('passage_id')!r}: words must be in ascending order")
        return cls(
            start=start,
            end=end,
            upos=row["upos"],
            dep=row["dep"],
            head=row["head"],
            lemma=row["lemma"],
            entity=row["entity"],
            sentence=np.asarray(row["sentence"], dtype=np.int64),
            clause=np.asarray(row["clause"], dtype=np.int64),
            keyword=None if row["keyword"] is None else np.asarray(row["keyword"], dtype=bool),
        )


@dataclass(frozen=True)
class TokenContext:
    """A tokenised passage, with the annotation and the signals that strategies read."""

    passage_id: str  # seeds strategies that draw at random
    offsets: np.ndarray  # character range of each position in the text, [T, 2]; [0, 2] if unknown
    # True at tokens that are not real ([T]): the tokenizer added them, they are left-out sinks, or outside the span.
    special: np.ndarray
    token_ids: np.ndarray | None = None  # vocabulary ids, [T]
    words: Words | None = None  # annotation of the passage, if there is one
    signals: Signals = field(default_factory=dict)  # signals by name (see `signals.py`)
    text: np.ndarray | None = None  # the real tokens of the whole text ([T]) where a span of it is pooled

    @property
    def num_positions(self) -> int:
        """Return the number of positions, special tokens included."""
        return len(self.special)

    @cached_property
    def real(self) -> np.ndarray:
        """Return the indices of the real tokens, ascending."""
        return np.flatnonzero(~self.special)

    @property
    def of_text(self) -> np.ndarray:
        """Return a mask [T] of the real tokens in the whole text, which attention, gradients and sinks refer to."""
        return ~self.special if self.text is None else self.text

    def without(self, left_out_T: np.ndarray) -> "TokenContext":
        """Return a copy of the passage that leaves out some real tokens. `left_out_T` is a boolean mask [T]."""
        return replace(self, special=self.special | left_out_T)

    def at_layer(self, signals: Signals) -> "TokenContext":
        """Return a copy of the passage with the signals of a layer added."""
        return replace(self, signals={**self.signals, **signals})

    def require(self, name: str) -> np.ndarray:
        """Return the signal `name`, [T] or [H, T].

        Raise CellError if the signal is missing or does not cover all positions.
        """
        signal = self.signals.get(name)
        if signal is None:
            raise CellError(Status.FAILED, f"no {name} per token: this model or these kept states do not give it")
        if isinstance(signal, CellError):
            raise CellError(signal.status, str(signal))
        if signal.shape[-1] != self.num_positions:
            raise CellError(Status.FAILED, f"{name} has {signal.shape[-1]} entries for {self.num_positions} positions")
        return signal

    def annotation(self) -> Words:
        """Return the annotation.

        Raise CellError if there is no annotation, or if tokens cannot be aligned with words.
        """
        name = repr(self.passage_id)
        if len(self.offsets) < self.num_positions:
            raise CellError(Status.FAILED, f"the tokens of passage {name} have no character offsets")
        if self.words is None:
            raise CellError(Status.FAILED, f"passage {name} has no annotation; run pooler.annotate")
        return self.words

    def real_tokens_of(self, chosen_W: Sequence[bool] | np.ndarray) -> np.ndarray:
        """Return the indices of the real tokens that overlap a chosen word. `chosen_W` is a boolean mask [W]."""
        words = self.annotation()
        mask_W = np.asarray(chosen_W, dtype=bool)
        inside = tokens_of_words(self.offsets, words.start, words.end, mask_W)
        return np.flatnonzero(inside & ~self.special)

    def mean_of(self, selected: np.ndarray, *, applied: bool = True) -> Weights:
        """Return equal weights on the `selected` positions.

        If no position is selected, return equal weights on all real tokens, with `applied` false.
        """
        if len(selected) == 0:
            return Weights(self._uniform(self.real), applied=False, token_share=0.0)
        share = min(1.0, len(selected) / len(self.real))
        return Weights(self._uniform(selected), applied=applied, token_share=share)

    def mean_of_means(self, segments: Sequence[np.ndarray], *, applied: bool = True) -> Weights:
        """Return the weights that average the means of segments. Empty segments are ignored.

        If all segments are empty, return equal weights on all real tokens, with `applied` false.
        """
        filled = [segment for segment in segments if len(segment)]
        if not filled:
            return self.mean_of(np.empty(0, dtype=np.int64))
        values = np.sum([self._uniform(segment) for segment in filled], axis=0) / len(filled)
        return Weights(values, applied=applied, token_share=np.count_nonzero(values) / len(self.real))

    def proportional_to(self, saliency_T: np.ndarray) -> Weights:
        """Return weights on the real tokens that are proportional to a non-negative saliency [T].

        If the saliency is zero everywhere, return the mean with `applied` false. Raise CellError if the saliency of a
        real token is not finite.
        """
        values = np.zeros(self.num_positions)
        values[self.real] = saliency_T[self.real]
        if not np.all(np.isfinite(values)):
            raise CellError(Status.NON_FINITE, "the saliency of a token is NaN or infinite")
        total = values.sum()
        return Weights(values / total) if total > 0 else self.mean_of(np.empty(0, dtype=np.int64))

    def parts_proportional_to(self, saliency_PT: np.ndarray) -> Parts:
        """Apply `proportional_to` to each row of a saliency [P, T]."""
        rows = [self.proportional_to(saliency_T) for saliency_T in saliency_PT]
        shares = [row.token_share for row in rows]
        return Parts(np.stack([row.values for row in rows]), all(row.applied for row in rows), float(np.mean(shares)))

    def _uniform(self, selected: np.ndarray) -> np.ndarray:
        values = np.zeros(self.num_positions)
        values[selected] = 1.0 / len(selected)
        return values
