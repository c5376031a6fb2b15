"""Token states as readouts learn from them: standardised, in blocks, by L-BFGS on a logistic loss."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from poolbench.errors import CellError
from poolbench.statuses import Status

#: L2 penalty on what is learned, beside the mean logistic loss of the training rows.
PENALTY = 0.01
#: Most steps of L-BFGS; what still moves then is used as it is.
MAX_STEPS = 100
#: Tokens in float64 at a time.
BLOCK_TOKENS = 8192
#: Numbers that are kept in float64 between steps: 512 MiB. Changes speed only.
HELD_NUMBERS = 64 << 20

#: Rows of some passages, their tokens [N, D] and the first token of each.
Block = tuple[slice, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Standardised:
    """Token states of passages, scaled to mean 0 and standard deviation 1 over all their tokens.

    The shift changes no softmax and only the intercept of the head. The scaling gives the penalty the same meaning for
    all units and outlier coordinates.
    """

    states: Sequence[np.ndarray]  # real-token states [T, D] of each passage
    mean_D: np.ndarray  # mean token
    scale_D: np.ndarray  # deviation of each coordinate; 1 where a coordinate is constant

    @classmethod
    def of(cls, states: Sequence[np.ndarray]) -> "Standardised":
        """Measure mean and deviation, in two passes for accuracy."""
        total = sum(len(h_TD) for h_TD in states)
        mean_D = np.sum([h_TD.sum(axis=0, dtype=np.float64) for h_TD in states], axis=0) / total
        square_D = np.sum([np.square(h_TD - mean_D).sum(axis=0) for h_TD in states], axis=0)
        scale_D = np.sqrt(square_D / total)
        constant = scale_D <= 1e-7 * np.abs(mean_D)  # below what float32 can tell from its neighbour
        return cls(states, mean_D, np.where(constant | (scale_D == 0), np.inf, scale_D))

    @cached_property
    def _held(self) -> list[Block]:
        return list(self._blocks())

    def blocks(self) -> Iterable[Block]:
        """Return the blocks, held in float64 if they are small, else computed again."""
        num_numbers = sum(h_TD.size for h_TD in self.states)
        return self._held if num_numbers <= HELD_NUMBERS else self._blocks()

    def _blocks(self) -> Iterator[Block]:
        """Yield runs of passages: their rows, their tokens [N, D] and the first token of each."""
        lengths = np.array([len(h_TD) for h_TD in self.states])
        block_of = np.cumsum(lengths) // BLOCK_TOKENS
        for number in np.unique(block_of):
            rows = np.flatnonzero(block_of == number)
            passages = slice(int(rows[0]), int(rows[-1]) + 1)
            x_ND = (np.concatenate(self.states[passages]) - self.mean_D) / self.scale_D
            yield passages, x_ND, np.cumsum(lengths[rows]) - lengths[rows]


def least_loss(
    loss_and_gradient: Callable[[np.ndarray, Standardised, np.ndarray], tuple[float, np.ndarray]],
    size: int,
    tokens: Standardised,
    labels_n: np.ndarray,
) -> OptimizeResult | CellError:
    """Minimise a loss over `size` numbers with L-BFGS, starting from zeros.

    Return the optimum, or the error if there is only one class or the result is not finite.
    """
    if len(np.unique(labels_n)) < 2:
        return CellError(Status.ONE_CLASS, "what is learned needs passages of both classes; the training rows hold one")
    options = {"maxiter": MAX_STEPS, "maxfun": 2 * MAX_STEPS}
    optimum = minimize(
        loss_and_gradient, np.zeros(size), (tokens, labels_n), method="L-BFGS-B", jac=True, options=options
    )
    return optimum if np.isfinite(optimum.x).all() else CellError(Status.NON_FINITE, "what was learned is not finite")
