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
    """The cost of sending n labels of K classes, or n real values in K bins.

    Attributes:
        num_classes: K.
        uniform_bits: n log2 K.
        online_bits: With the regularisation chosen inside each block.
        plain_bits: With one fixed regularisation, as an unregularised probe would be used.
        released_nats: The sum of the code released with Holmes for that probe; None for values, which it cannot code.
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
        """Uniform over online code length: 1 where the vectors carry no information on the labels."""
        return self.uniform_bits / self.online_bits

    @property
    def unregularised(self) -> float:
        """Return the same of the plain probe."""
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
    sender_after: Callable[[int], Sender],
    *,
    c_values: Sequence[float],
    plain_c: float,
    released: bool,
) -> CodeLengths:
    """Send the labels block by block, in their order, and add up the cost of each code.

    Args:
        vectors_nD: Vectors in the order of sending.
        sender_after: Returns the sender after a number of labels.
        released: Whether the released formula is added up too.
    """
    ends = block_ends(len(codes))
    online = plain = double = ends[0] * np.log(num_classes)  # the first block is sent without a probe
    chosen: list[float | None] = []
    num_replaced = 0
    for start, end in pairwise(ends):
        sender, block, block_codes = sender_after(start), vectors_nD[start:end], codes[start:end]
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
