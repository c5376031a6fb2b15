"""Online code length of labels given vectors, in bits: how easily a probe learns, not only how well.

Reference: Voita & Titov (2020), "Information-theoretic probing with minimum description length", section 3.2.
Here the regularisation is chosen inside each block, with the constant predictor among the choices: a probe of
high-dimensional vectors that must learn from few labels pays for its overconfidence otherwise, and random labels
would seem incompressible to a degree that grows with the width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from scipy.special import log_softmax

from poolbench_prober.tasks.constant import cheapest, constant_predictor, dealt_folds, held_out_cost, laplace
from poolbench_prober.tasks.models import Linear, fit_classifiers

#: Ends of the blocks in percent of the instances.
BLOCKS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.25, 12.5, 25.0, 50.0, 100.0)


@dataclass(frozen=True)
class CodeLengths:
    """What it costs to send n labels of K classes, or n real values in K bins.

    Attributes:
        num_classes: K.
        uniform_bits: n log2 K.
        online_bits: With the regularisation chosen inside each block.
        plain_bits: With one fixed regularisation, as an unregularised probe would be used.
        released_nats: What the code released with Holmes adds up for that probe; None for values, which it has no
            code for.
        chosen: The C of each block, null where the constant predictor was chosen or the probe did not converge.
        num_replaced: Blocks of the plain code that the constant predictor sent because there was no converged probe.
    """

    num_classes: int
    uniform_bits: float
    online_bits: float
    plain_bits: float
    released_nats: float | None
    chosen: tuple[float | None, ...]
    num_replaced: int = 0

    @property
    def compression(self) -> float:
        """Uniform over online code length: 1 where the vectors say nothing of the labels."""
        return self.uniform_bits / self.online_bits

    @property
    def unregularised(self) -> float:
        """The same of the plain probe."""
        return self.uniform_bits / self.plain_bits

    @property
    def released(self) -> float | None:
        """Bits over nats of a softmax applied twice: 1 / ln 2 at chance, at most 3.192 for two classes."""
        return None if self.released_nats is None else self.uniform_bits / self.released_nats


class Sender(Protocol):
    """What is known after some labels were sent, and how it predicts the next ones."""

    def choose(self, c_values: Sequence[float]) -> float | None:
        """The regularisation that promises the shortest code; None for the constant predictor."""

    def converged(self, c: float) -> bool:
        """Whether there is a converged probe of this regularisation."""

    def log_probabilities(self, block_mD: np.ndarray, c: float | None) -> np.ndarray:
        """Natural log of each class's probability [m, K]; None, or a probe that there is not: the constant one."""


def block_ends(num_rows: int) -> list[int]:
    """Numbers of instances at which the blocks end, each once, the last ``num_rows``."""
    return sorted({max(1, round(percent * num_rows / 100)) for percent in BLOCKS})


def code_lengths(
    vectors_nD: np.ndarray,
    codes: np.ndarray,
    num_classes: int,
    *,
    c_values: Sequence[float],
    plain_c: float,
    tolerance: float,
    seed: int,
) -> CodeLengths:
    """Code lengths of the labels in one fixed shuffle.

    Args:
        vectors_nD: Vectors, finite.
        codes: Class numbers [n].
        num_classes: K of the code that knows nothing.
        c_values: Regularisations to choose from beside the constant predictor.
        plain_c: The regularisation of the plain probe.
        tolerance: Of the probes.
        seed: Of the shuffle and the inner folds.
    """
    order = np.random.default_rng(seed).permutation(len(codes))
    vectors_nD, codes = vectors_nD[order], codes[order]

    def sender(sent: int) -> Sender:
        return ClassSender(vectors_nD[:sent], codes[:sent], num_classes, tolerance, seed)

    return send(vectors_nD, codes, num_classes, sender, c_values=c_values, plain_c=plain_c, released=True)


def send(
    vectors_nD: np.ndarray,
    codes: np.ndarray,
    num_classes: int,
    sender_after: Callable[[int], Sender],
    *,
    c_values: Sequence[float],
    plain_c: float,
    released: bool,
) -> CodeLengths:
    """Sends the labels block by block, in their order, and adds up what each code costs.

    Args:
        vectors_nD: Vectors in the order of sending.
        codes: Class numbers in the same order.
        num_classes: K.
        sender_after: From a number of labels sent to what is known then.
        c_values: Regularisations to choose from.
        plain_c: The regularisation of the plain probe.
        released: Whether the released formula is added up too.
    """
    ends = block_ends(len(codes))
    online = plain = double = ends[0] * np.log(num_classes)  # the first block is sent without a probe
    chosen: list[float | None] = []
    num_replaced = 0
    for start, end in pairwise(ends):
        sender, block, told = sender_after(start), vectors_nD[start:end], codes[start:end]
        c = sender.choose(c_values)
        chosen.append(c)
        online += nats(sender.log_probabilities(block, c), told)
        log_p = sender.log_probabilities(block, plain_c)
        num_replaced += not sender.converged(plain_c)
        plain += nats(log_p, told)
        double += nats(np.asarray(log_softmax(np.exp(log_p), axis=1)), told)
    bit = np.log(2)
    bits = len(codes) * np.log2(num_classes), online / bit, plain / bit
    return CodeLengths(num_classes, *bits, double if released else None, tuple(chosen), num_replaced)


def nats(log_probabilities_mK: np.ndarray, codes: np.ndarray) -> float:
    """Negative log-likelihood of the labels."""
    return float(-log_probabilities_mK[np.arange(len(codes)), codes].sum())


class ClassSender:
    """What is known of classes after some labels were sent."""

    def __init__(
        self, vectors_nD: np.ndarray, codes: np.ndarray, num_classes: int, tolerance: float, seed: int
    ) -> None:
        self.vectors_nD, self.codes, self.tolerance, self.seed = vectors_nD, codes, tolerance, seed
        self.seen = np.unique(codes)
        counts = np.bincount(codes, minlength=num_classes)
        self.frequencies, self.constant = laplace(counts), constant_predictor(counts)
        self.fits: dict[float, Linear] = {}

    def log_probabilities(self, block_mD: np.ndarray, c: float | None) -> np.ndarray:
        """As in ``Sender``. A class that was not seen yet keeps the probability of Laplace's rule."""
        if c is None or not self.converged(c):
            return np.tile(self.constant, (len(block_mD), 1))
        log_p = np.tile(self.frequencies, (len(block_mD), 1))
        known = np.log(np.exp(self.frequencies[self.seen]).sum())
        log_p[:, self.seen] = known + self.fits[c].log_probabilities(block_mD)
        return log_p

    def converged(self, c: float) -> bool:
        """As in ``Sender``; with one class there is nothing to fit."""
        if len(self.seen) < 2:
            return False
        self._fit([c])
        return self.fits[c].converged

    def _fit(self, c_values: Sequence[float]) -> None:
        lacking = [c for c in c_values if c not in self.fits]
        if lacking and len(self.seen) > 1:
            codes = np.searchsorted(self.seen, self.codes)
            found = fit_classifiers(self.vectors_nD, codes, len(self.seen), lacking, self.tolerance)
            self.fits |= dict(zip(lacking, found, strict=True))

    def choose(self, c_values: Sequence[float]) -> float | None:
        """The regularisation with the shortest code in stratified inner folds; None for the constant predictor."""
        folds = dealt_folds(self.codes, self.seed)
        if folds is None:
            return None
        cost_nC = np.zeros((len(self.codes), 1 + len(c_values)))
        cost_nC[:, 0] = held_out_cost(self.codes, folds, len(self.constant))
        for fold in np.unique(folds):
            held = folds == fold
            rest = self.vectors_nD[~held], self.codes[~held]
            inner = ClassSender(*rest, len(self.constant), self.tolerance, self.seed)
            inner._fit(c_values)  # all at once
            for number, c in enumerate(c_values, 1):
                log_p = inner.log_probabilities(self.vectors_nD[held], c)
                cost_nC[held, number] = -log_p[np.arange(held.sum()), self.codes[held]]
        return cheapest(cost_nC, c_values)
