"""Online code length of labels given vectors, in bits: how easily a probe learns, not only how well.

Reference: Voita & Titov (2020), "Information-theoretic probing with minimum description length", section 3.2.
Here the regularisation is chosen inside each block, with the constant predictor among the choices. Otherwise a probe
of high-dimensional vectors that learns from few labels pays for its overconfidence, and random labels would seem less
compressible the wider the vectors are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from scipy.special import log_softmax

#: Ends of the blocks in percent of the instances.
BLOCKS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.25, 12.5, 25.0, 50.0, 100.0)


@dataclass(frozen=True)
class CodeLengths:
    """The cost of sending n labels of K classes, or n real values in K bins."""

    num_classes: int  # K
    uniform_bits: float  # n log2 K
    online_bits: float  # with the regularisation chosen inside each block
    plain_bits: float  # with one fixed regularisation, as an unregularised probe would be used
    released_nats: float | None  # the sum of the code released with Holmes for that probe; None for values
    chosen: tuple[float | None, ...]  # C of each block; null for the constant predictor, or without convergence
    num_replaced: int = 0  # blocks of the plain code that the constant predictor sent, without a converged probe

    @property
    def compression(self) -> float:
        """Return uniform over online code length: 1 where the vectors carry no information on the labels."""
        return self.uniform_bits / self.online_bits

    @property
    def unregularised(self) -> float:
        """Return the same ratio for the plain probe."""
        return self.uniform_bits / self.plain_bits

    @property
    def released(self) -> float | None:
        """Return bits over nats of a softmax applied twice: 1 / ln 2 at chance, at most 3.192 for two classes."""
        return None if self.released_nats is None else self.uniform_bits / self.released_nats


class Sender(Protocol):
    """What is known after some labels were sent, and how the next ones are predicted."""

    def choose(self, c_values: Sequence[float]) -> float | None:
        """Return the regularisation with the shortest expected code; None for the constant predictor."""

    def converged(self, c: float) -> bool:
        """Return whether there is a converged probe of this regularisation."""

    def log_probabilities(self, block_mD: np.ndarray, c: float | None) -> np.ndarray:
        """Return the log-probability of each class [m, K]; the constant one for c = None or without a probe."""


def block_ends(num_rows: int) -> list[int]:
    """Return the numbers of instances at which the blocks end, each once, the last `num_rows`."""
    return sorted({max(1, round(percent * num_rows / 100)) for percent in BLOCKS})


def send(
    vectors_nD: np.ndarray,
    codes: np.ndarray,
    num_classes: int,
    sender_after: Callable[[np.ndarray], Sender],
    *,
    c_values: Sequence[float],
    plain_c: float,
    seed: int,
    released: bool,
) -> CodeLengths:
    """Send the labels block by block, in one fixed shuffle, and add up the cost of each code.

    Args:
        sender_after: Returns the sender after the labels of these rows, in their order.
        seed: Of the shuffle.
        released: Whether the released formula is added up too.
    """
    order, ends = np.random.default_rng(seed).permutation(len(codes)), block_ends(len(codes))
    online = plain = double = ends[0] * np.log(num_classes)  # the first block is sent without a probe
    chosen: list[float | None] = []
    num_replaced = 0
    for start, end in pairwise(ends):
        rows, sender = order[start:end], sender_after(order[:start])
        block, block_codes = vectors_nD[rows], codes[rows]
        c = sender.choose(c_values)
        chosen.append(c if c is not None and sender.converged(c) else None)
        online += nats(sender.log_probabilities(block, c), block_codes)
        log_p = sender.log_probabilities(block, plain_c)
        num_replaced += not sender.converged(plain_c)
        plain += nats(log_p, block_codes)
        double += nats(np.asarray(log_softmax(np.exp(log_p), axis=1)), block_codes)
    bit = np.log(2)
    bits = len(codes) * np.log2(num_classes), online / bit, plain / bit
    return CodeLengths(num_classes, *bits, double if released else None, tuple(chosen), num_replaced)


def nats(log_probabilities_mK: np.ndarray, codes: np.ndarray) -> float:
    """Return negative log-likelihood of the labels."""
    return float(-log_probabilities_mK[np.arange(len(codes)), codes].sum())


INNER_FOLDS = 5


def laplace(counts_K: np.ndarray) -> np.ndarray:
    """Return the natural log of the class frequencies by Laplace's rule of succession [K]."""
    return np.asarray(np.log((counts_K + 1) / (counts_K.sum() + len(counts_K))))


def constant_predictor(counts_K: np.ndarray) -> np.ndarray:
    """Return log-probabilities [K]: class frequencies by Laplace's rule where they save bits, else uniform.

    Frequencies of K equal classes only cost: about (K - 1) / 2 nats per block to learn what was known. They must
    save more than one standard error on the labels sent, each predicted from the others.
    """
    counts, num_classes, total = counts_K.astype(np.float64), len(counts_K), int(counts_K.sum())
    uniform = np.full(num_classes, -np.log(num_classes))
    if total < 2:
        return uniform
    # A label predicted from the others has been seen one time less: (c - 1 + 1) / (n - 1 + K).
    saved_K = np.log(np.maximum(counts, 1) * num_classes / (total - 1 + num_classes))
    mean = float(counts @ saved_K / total)
    margin = np.sqrt(counts @ (saved_K - mean) ** 2 / total) / np.sqrt(total)
    return laplace(counts_K) if mean > margin else uniform


def held_out_cost(codes: np.ndarray, folds: np.ndarray, num_classes: int) -> np.ndarray:
    """Return each label's cost by the frequencies of the other folds, or uniformly if that is cheaper in total [n].

    Stratified folds share their frequencies, which favours every predictor that learns them. A probe learns them too,
    so it is compared with these and not with the uniform predictor alone.
    """
    cost_n = np.empty(len(codes))
    for fold in np.unique(folds):
        held = folds == fold
        cost_n[held] = -laplace(np.bincount(codes[~held], minlength=num_classes))[codes[held]]
    uniform = np.log(num_classes)
    return cost_n if cost_n.mean() < uniform else np.full(len(codes), uniform)


def cheapest(cost_nC: np.ndarray, c_values: Sequence[float]) -> float | None:
    """Return the C of the lowest cost if it saves more than one standard error on the constant predictor (column 0).

    Without the margin the best of many useless probes wins by luck, and random labels cost up to 2 % too much.

    Reference: Breiman et al. (1984), Classification and regression trees, 3.4.3 (the one-standard-error rule).
    """
    best = int(np.argmin(cost_nC.sum(axis=0)))
    saved = cost_nC[:, 0] - cost_nC[:, best]
    margin = saved.std() / np.sqrt(len(saved))
    return c_values[best - 1] if best and saved.mean() > margin else None


def dealt_folds(codes: np.ndarray, seed: int) -> np.ndarray | None:
    """Return inner folds with evenly distributed classes; None where at most one class has two members."""
    counts = np.bincount(codes)
    if (counts >= 2).sum() < 2:
        return None
    order = np.random.default_rng((seed, len(codes))).permutation(len(codes))
    order = order[np.argsort(codes[order], kind="stable")]
    folds = np.empty(len(codes), dtype=int)
    folds[order] = np.arange(len(codes)) % min(INNER_FOLDS, len(codes))
    return folds
