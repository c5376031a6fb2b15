"""Input and output of a solver, the same for every implementation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

LossName = Literal["logistic", "softmax", "squared"]
#: Gradient norm over its norm at zero weights at which a probe has converged.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Problem:
    """P probes on some rows of one matrix: minimises C sum loss(w x + b) + |w|^2 / 2, with b unpenalised.

    The rows are standardised by their own mean and standard deviation (ddof 0) first.

    Attributes:
        vectors_ND: The matrix, float32 or float64; never copied as a whole.
        rows: The n training rows.
        targets_nPk: Targets of those rows: 0 or 1 (logistic, k = 1), one-hot (softmax), any number (squared, k = 1).
        c_P: Inverse regularisation of each probe.
        loss: Logistic log(1 + exp(-y m)); softmax cross-entropy, every class with weights; squared (m - y)^2 / 2.
    """

    vectors_ND: np.ndarray
    rows: np.ndarray
    targets_nPk: np.ndarray
    c_P: np.ndarray
    loss: LossName = "logistic"


@dataclass(frozen=True)
class Solution:
    """The probes of one problem, in the coordinates of the vectors as they were given (standardisation undone).

    Attributes:
        gradient_ratio: Gradient norm at the solution over its norm at zero weights [P].
        converged: Whether the ratio is within the tolerance and the gradient within 1e-3 of the weights' norm, which
            bounds their relative error by 1e-3 [P].
        num_iterations: Newton steps of each probe [P].
        solver: What ran, e.g. `numpy` or `torch:cuda`.
    """

    weights_DPk: np.ndarray
    intercepts_Pk: np.ndarray
    gradient_ratio: np.ndarray
    converged: np.ndarray
    num_iterations: np.ndarray
    solver: str


class Solver(Protocol):
    """One implementation; all agree within 1e-3 of a coefficient vector's norm and 1e-4 of an AUROC."""

    @property
    def name(self) -> str:
        """Return name in records."""

    def solve(self, problems: Sequence[Problem], tolerance: float) -> list[Solution]:
        """Solve all problems; a probe's solution does not depend on the other problems."""


@dataclass(frozen=True)
class ProbeFit:
    """K probes with one output each, fitted on one matrix. Attributes as in `Solution`, but for:

    Attributes:
        gradient_ratio: Infinite where a column has one class.
    """

    weights_DK: np.ndarray
    intercepts: np.ndarray
    gradient_ratio: np.ndarray
    converged: np.ndarray
    num_iterations: np.ndarray
    solver: str = "numpy"

    def scores(self, vectors_nD: np.ndarray) -> np.ndarray:
        """Return log-odds (or predictions, for squared loss) of each vector under each probe [n, K]."""
        return np.asarray(vectors_nD @ self.weights_DK + self.intercepts)


@dataclass(frozen=True)
class SoftmaxFit:
    """P multinomial probes with k classes each, fitted on one matrix. Attributes as in `Solution`, but for:

    Attributes:
        weights_DPk: Zero for a class that no training row has.
        intercepts_Pk: They sum to 0 over the classes that rows have; -inf for the others.
    """

    weights_DPk: np.ndarray
    intercepts_Pk: np.ndarray
    gradient_ratio: np.ndarray
    converged: np.ndarray
    num_iterations: np.ndarray
    solver: str = "numpy"

    def scores(self, vectors_nD: np.ndarray) -> np.ndarray:
        """Return log-probabilities up to a constant a row [n, P, k]."""
        return np.tensordot(vectors_nD, self.weights_DPk, axes=1) + self.intercepts_Pk
