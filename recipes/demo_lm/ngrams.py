"""Interpolated Kneser-Ney n-gram models over token arrays, as baselines of the demo language model.

Reference: Chen and Goodman, "An empirical study of smoothing techniques for language modeling", 1999, section
3 (modified Kneser-Ney: three discounts per order, estimated from the counts of counts).
"""

from dataclasses import dataclass

import numpy as np

MAX_ORDER = 3


def keys_of(tokens: np.ndarray, order: int, vocabulary: int) -> np.ndarray:
    """Return one integer per n-gram, in the order of the text; length len(tokens) - order + 1."""
    wide = tokens.astype(np.int64)
    keys = np.zeros(len(wide) - order + 1, dtype=np.int64)
    for offset in range(order):
        keys = keys * vocabulary + wide[offset : offset + len(keys)]
    return keys


def discounts(counts: np.ndarray) -> np.ndarray:
    """Return the modified Kneser-Ney discounts for counts 1, 2 and 3 or more (Chen and Goodman, eq. 26)."""
    n1, n2, n3, n4 = (max(int(np.sum(counts == value)), 1) for value in (1, 2, 3, 4))
    base = n1 / (n1 + 2 * n2)
    raw = (1 - 2 * base * n2 / n1, 2 - 3 * base * n3 / n2, 3 - 4 * base * n4 / n3)
    return np.clip(raw, 0.0, (1.0, 2.0, 3.0))


@dataclass(frozen=True)
class Level:
    """Discounted counts of one order."""

    keys: np.ndarray  # sorted n-gram keys
    counts: np.ndarray  # true counts at the highest order, numbers of left contexts below it
    contexts: np.ndarray  # sorted keys of the contexts (the n-grams without their last token)
    totals: np.ndarray  # sum of the counts per context
    reserved: np.ndarray  # probability mass per context that goes to the next lower order
    cut: np.ndarray  # the three discounts


def level(keys: np.ndarray, counts: np.ndarray, vocabulary: int) -> Level:
    """Discount one order's counts."""
    cut = discounts(counts)
    contexts, index = np.unique(keys // vocabulary, return_inverse=True)
    totals = np.bincount(index, weights=counts)
    taken = np.bincount(index, weights=cut[np.minimum(counts, 3) - 1])
    return Level(keys, counts, contexts, totals, taken / totals, cut)


class KneserNey:
    """A model of a given order; `probabilities` scores every token of a text that has a full context."""

    def __init__(self, tokens: np.ndarray, order: int, vocabulary: int) -> None:
        self.order, self.vocabulary = order, vocabulary
        keys, counts = np.unique(keys_of(tokens, order, vocabulary), return_counts=True)
        self.levels = [level(keys, counts, vocabulary)]
        for _ in range(order - 1):
            # The count of a lower order is the number of different tokens seen to its left.
            keys, counts = np.unique(keys % vocabulary ** (order - len(self.levels)), return_counts=True)
            self.levels.insert(0, level(keys, counts, vocabulary))

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """Return the probability of each token from index `order - 1` on, given the tokens before it."""
        number = len(tokens) - self.order + 1
        probability = np.full(number, 1 / self.vocabulary)
        for size, stage in enumerate(self.levels, start=1):
            keys = keys_of(tokens, size, self.vocabulary)[-number:]
            probability = _interpolate(stage, keys, probability, self.vocabulary)
        return probability


def _interpolate(stage: Level, keys: np.ndarray, lower: np.ndarray, vocabulary: int) -> np.ndarray:
    """Apply one step of the recursion; an unseen context gives all its mass to the lower order."""
    context = np.minimum(np.searchsorted(stage.contexts, keys // vocabulary), len(stage.contexts) - 1)
    is_context = stage.contexts[context] == keys // vocabulary
    index = np.minimum(np.searchsorted(stage.keys, keys), len(stage.keys) - 1)
    count = np.where(stage.keys[index] == keys, stage.counts[index], 0)
    discounted = np.where(count > 0, count - stage.cut[np.minimum(np.maximum(count, 1), 3) - 1], 0.0)
    mixed = discounted / stage.totals[context] + stage.reserved[context] * lower
    return np.where(is_context, mixed, lower)


def loss(model: KneserNey, tokens: np.ndarray, scored: np.ndarray) -> float:
    """Return the mean negative log probability (nats) at the `scored` positions, without the first two."""
    marked = scored[model.order - 1 :].copy()
    marked[: MAX_ORDER - model.order] = False
    return float(-np.mean(np.log(model.probabilities(tokens)[marked])))
