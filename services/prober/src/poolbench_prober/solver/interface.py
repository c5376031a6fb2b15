"""Input and output of a solver, the same for every implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from poolbench_prober.solver.backend import Array, Backend

LossName = Literal["logistic", "softmax", "squared"]
GiveUp = Callable[[np.ndarray, np.ndarray], np.ndarray]
#: Gradient norm over its norm at zero weights at which a probe has converged.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Problem:
    """P probes on some rows of one matrix: minimises C sum loss(w x + b) + |w|^2 / 2, with b unpenalised.

    The rows are standardised by their own mean and standard deviation (ddof 0) first.

    Attributes:
        vectors_ND: The matrix, in float32 or float64, which is never copied as a whole.
        rows: The n training rows.
        targets_nPk: Targets of the training rows: 0 or 1 (logistic, k = 1), one-hot (softmax), real (squared, k = 1).
        c_P: Inverse regularisation of each probe.
        loss: `logistic` is log(1 + exp(-y m)), `softmax` is the cross-entropy with weights for every class, and
            `squared` is (m - y)^2 / 2.
        give_up: Called after each step with weights [D, P, k] and intercepts [P, k] in the coordinates of the vectors;
            says which probes [P] need not be fitted any further. They are marked as not converged.
    """

    vectors_ND: np.ndarray
    rows: np.ndarray
    targets_nPk: np.ndarray
    c_P: np.ndarray
    loss: LossName = "logistic"
    give_up: GiveUp | None = None


@dataclass(frozen=True)
class Solution:
    """The probes of one problem, in the coordinates of the given vectors (with standardisation undone).

    Attributes:
        gradient_ratio: Gradient norm at the solution divided by the gradient norm at zero weights [P].
        converged: Whether the ratio is within the tolerance and the gradient within 1e-3 of the weights' norm, which
            bounds their relative error by 1e-3 [P].
        num_iterations: Newton steps of each probe [P].
        solver: Solver that was used, e.g. `numpy` or `torch:cuda`.
    """

    weights_DPk: np.ndarray
    intercepts_Pk: np.ndarray
    gradient_ratio: np.ndarray
    converged: np.ndarray
    num_iterations: np.ndarray
    solver: str


class Solver(Protocol):
    """A solver. All solvers agree within 1e-3 of the norm of a coefficient vector and within 1e-4 of AUROC."""

    @property
    def name(self) -> str:
        """Return name in records."""

    def solve(self, problems: Sequence[Problem], tolerance: float) -> list[Solution]:
        """Solve all problems. The solution of a probe does not depend on the other problems."""


@dataclass(frozen=True)
class ProbeFit:
    """K probes with one output each, fitted on one matrix. Attributes are as in `Solution`."""

    weights_DK: np.ndarray
    intercepts: np.ndarray
    gradient_ratio: np.ndarray  # infinite where a column has one class
    converged: np.ndarray
    num_iterations: np.ndarray
    solver: str

    def scores(self, vectors_nD: np.ndarray) -> np.ndarray:
        """Return log-odds (or predictions, for squared loss) of each vector under each probe [n, K]."""
        return np.asarray(vectors_nD @ self.weights_DK + self.intercepts)


@dataclass(frozen=True)
class SoftmaxFit(Solution):
    """P multinomial probes with k classes each, fitted on one matrix.

    Attributes:
        weights_DPk: Weights, which are zero for a class that no training row has.
        intercepts_Pk: Intercepts, which sum to 0 over the classes of the training rows, and are -inf for other classes.
    """

    def scores(self, vectors_nD: np.ndarray) -> np.ndarray:
        """Return log-probabilities up to a constant a row [n, P, k]."""
        return np.tensordot(vectors_nD, self.weights_DPk, axes=1) + self.intercepts_Pk


@dataclass(frozen=True)
class Loss:
    """B problems of P probes with k outputs."""

    name: LossName
    targets: Array  # [B, n, P, k]
    scale: Array  # C of each probe for a row, 0 for a padding row [B, n, P, 1]
    backend: Backend

    def take(self, probes: Array) -> Loss:
        """Return some of the probes."""
        return replace(self, targets=self.targets[:, :, probes], scale=self.scale[:, :, probes])

    def predict(self, margins: Array) -> Array:
        """Return predictions of the margins."""
        xp = self.backend.xp
        if self.name == "logistic":
            return 0.5 + 0.5 * xp.tanh(0.5 * margins)
        if self.name == "softmax":
            powers = xp.exp(margins - xp.amax(margins, -1)[..., None])
            return powers / powers.sum(-1)[..., None]
        return margins

    def residual(self, margins: Array) -> Array:
        """Return derivative of C times the loss by the margins."""
        return self.scale * (self.predict(margins) - self.targets)

    def curvature(self, margins: Array) -> Curvature:
        """Return second derivative at the margins."""
        predicted = self.predict(margins)
        if self.name == "logistic":
            return Curvature(self.scale * predicted * (1 - predicted))
        if self.name == "softmax":
            return Curvature(self.scale * predicted, predicted)
        return Curvature(self.scale + 0 * predicted)


@dataclass(frozen=True)
class Curvature:
    """Second derivative of the loss of each row by its k margins."""

    weight: Array  # its diagonal, before the part that classes share [B, n, P, k]
    shared: Array | None = None  # probabilities of the classes (softmax); a change loses their mean. None elsewhere.

    def diagonal(self) -> Array:
        """Return the diagonal [B, n, P, k]."""
        return self.weight if self.shared is None else self.weight * (1 - self.shared)

    def apply(self, change: Array) -> Array:
        """Return the second derivative times a change of the margins: the change of the residual to first order."""
        if self.shared is not None:
            change = change - (self.shared * change).sum(-1)[..., None]
        return self.weight * change

    def take(self, probes: Array) -> Curvature:
        """Return some of the probes."""
        shared = None if self.shared is None else self.shared[:, :, probes]
        return Curvature(self.weight[:, :, probes], shared)

    def cast(self, backend: Backend, single: bool) -> Curvature:
        """Return the curvature in float32 or float64."""
        shared = None if self.shared is None else backend.cast(self.shared, single)
        return Curvature(backend.cast(self.weight, single), shared)
