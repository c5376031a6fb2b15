"""Newton's method in the row space of the standardised vectors, for many labelings and penalties at once.

The L2 optimum lies in the span of the training vectors, so D coordinates reduce to at most n: one
eigendecomposition of the smaller of X X' and X' X serves every labeling and every C. In that basis the
columns are orthogonal, hence the Hessian with constant curvature is diagonal and preconditions the conjugate
gradients so well that a Newton step takes a few products with the matrix; all probes share each product.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from poolbench_prober.solver.interface import ProbeFit

MAX_NEWTON_STEPS = 100
MAX_CG_STEPS = 500
#: Part of the largest possible gradient under which the gradient at zero weights counts as none.
_NOISE_FLOOR = 1e-6
_ARMIJO = 1e-4


@dataclass(frozen=True)
class RowSpace:
    """Standardised vectors in an orthogonal basis of their row space.

    Attributes:
        coordinates_nr: Z, with Z' Z diagonal.
        eigenvalues: The diagonal of Z' Z [r].
        basis_Dr: Orthonormal columns B with standardised X = Z B'.
        means: Of the columns of the vectors [D].
        scales: Their standard deviations, 1 where a column is constant [D].
    """

    coordinates_nr: np.ndarray
    eigenvalues: np.ndarray
    basis_Dr: np.ndarray
    means: np.ndarray
    scales: np.ndarray


def fit_probes(vectors_nD: np.ndarray, labels_nK: np.ndarray, c_K: np.ndarray, tolerance: float = 1e-6) -> ProbeFit:
    """Fits K probes: minimises C sum log(1 + exp(-y (w x + b))) + |w|^2 / 2, with b unpenalised.

    Vectors are standardised by their own mean and standard deviation (ddof 0) first.

    Args:
        vectors_nD: Training vectors [n, D], finite.
        labels_nK: Labels 0 or 1, one column a probe; both classes in every column.
        c_K: Inverse regularisation of each probe.
        tolerance: A probe has converged when its gradient norm is at most this part of its norm at w = 0.

    Returns:
        The probes in the coordinates of the vectors; probes that did not converge are marked, not dropped.
    """
    space = row_space(np.asarray(vectors_nD, dtype=np.float64))
    problem = _Newton(space, np.asarray(labels_nK, dtype=np.float64), np.asarray(c_K, dtype=np.float64))
    problem.solve(tolerance)
    weights_DK = (space.basis_Dr @ problem.weights[:-1]) / space.scales[:, None]
    return ProbeFit(
        weights_DK=weights_DK,
        intercepts=problem.weights[-1] - space.means @ weights_DK,
        gradient_ratio=problem.ratio,
        converged=problem.ratio <= tolerance,
        num_iterations=problem.num_steps,
    )


def row_space(vectors_nD: np.ndarray) -> RowSpace:
    """Standardises the vectors and rotates them into their row space."""
    means = vectors_nD.mean(axis=0)
    scales = vectors_nD.std(axis=0)
    # A column whose spread is rounding noise of its mean is constant.
    scales[scales <= 1e-12 * np.abs(means)] = 0.0
    constant = scales == 0
    scales[constant] = 1.0
    standard = (vectors_nD - means) / scales
    standard[:, constant] = 0.0
    num_rows, width = standard.shape
    wide = width > num_rows
    values, side = np.linalg.eigh(standard @ standard.T if wide else standard.T @ standard)
    kept = values > values[-1] * max(num_rows, width) * np.finfo(np.float64).eps
    values, side = values[kept], side[:, kept]
    if wide:
        roots = np.sqrt(values)
        return RowSpace(side * roots, values, standard.T @ (side / roots), means, scales)
    side[constant] = 0.0  # exactly, so that constant columns get no weight
    return RowSpace(standard @ side, values, side, means, scales)


class _Newton:
    """State of K problems that share one design matrix; the last row of ``weights`` is the intercept."""

    def __init__(self, space: RowSpace, labels_nK: np.ndarray, c_K: np.ndarray) -> None:
        num_rows, rank = space.coordinates_nr.shape
        num_probes = labels_nK.shape[1]
        self.design = np.hstack([space.coordinates_nr, np.ones((num_rows, 1))])
        self.squares = np.append(space.eigenvalues, num_rows)[:, None]
        self.penalty = np.append(np.ones(rank), 0.0)[:, None]
        self.labels, self.c = labels_nK, c_K
        self.weights = np.zeros((rank + 1, num_probes))
        self.margins = np.zeros((num_rows, num_probes))
        self.gradient = self._gradient(np.arange(num_probes))
        # Where the classes have equal means (pairs of one vector), the gradient at zero is rounding noise
        # and zero weights are the optimum: measured against the largest possible gradient, not against noise.
        largest = self.c * 0.5 * np.sqrt(num_rows) * np.linalg.norm(self.design)
        self.start_norm = np.maximum(np.linalg.norm(self.gradient, axis=0), _NOISE_FLOOR * largest)
        self.num_steps = np.zeros(num_probes, dtype=int)

    @property
    def ratio(self) -> np.ndarray:
        """Gradient norm over its norm at zero weights [K]."""
        return np.linalg.norm(self.gradient, axis=0) / self.start_norm

    def solve(self, tolerance: float) -> None:
        """Newton steps until every probe has converged or the steps are spent."""
        for _ in range(MAX_NEWTON_STEPS):
            active = np.flatnonzero(self.ratio > tolerance)
            if active.size == 0:
                return
            moved = self._step(active)
            self.num_steps[active] += 1
            if not moved:
                return

    def _step(self, active: np.ndarray) -> bool:
        """One step of the active probes; false where none of them can descend any further."""
        step, margin_step = self._conjugate_gradients(active)
        lengths = self._line_search(active, step, margin_step)
        self.weights[:, active] += lengths * step
        self.margins[:, active] += lengths * margin_step
        self.gradient[:, active] = self._gradient(active)
        return bool((lengths > 0).any())

    def _gradient(self, active: np.ndarray) -> np.ndarray:
        residual = self.c[active] * (expit(self.margins[:, active]) - self.labels[:, active])
        return self.penalty * self.weights[:, active] + self.design.T @ residual

    def _loss(self, weights: np.ndarray, margins: np.ndarray, active: np.ndarray) -> np.ndarray:
        fit = np.logaddexp(0, margins) - self.labels[:, active] * margins
        return self.c[active] * fit.sum(axis=0) + 0.5 * (self.penalty * weights**2).sum(axis=0)

    def _conjugate_gradients(self, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Approximate Newton step of each active probe, and the change of the margins along it."""
        probability = expit(self.margins[:, active])
        curvature = self.c[active] * probability * (1 - probability)
        inverse = 1 / (self.penalty + self.squares * np.maximum(curvature.mean(axis=0), 1e-300))
        residual = -self.gradient[:, active]
        target = residual_target(np.linalg.norm(residual, axis=0), self.start_norm[active])
        step, margin_step = np.zeros_like(residual), np.zeros_like(probability)
        scaled = inverse * residual
        towards, energy = scaled.copy(), (residual * scaled).sum(axis=0)
        for _ in range(MAX_CG_STEPS):
            margin_towards = self.design @ towards
            image = self.penalty * towards + self.design.T @ (curvature * margin_towards)
            bend = (towards * image).sum(axis=0)
            live = (np.linalg.norm(residual, axis=0) > target) & (bend > 0)
            if not live.any():
                break
            length = np.where(live, energy / np.where(live, bend, 1.0), 0.0)
            step += length * towards
            margin_step += length * margin_towards
            residual -= length * image
            scaled = inverse * residual
            previous, energy = energy, (residual * scaled).sum(axis=0)
            towards = scaled + np.where(live, energy / np.where(live, previous, 1.0), 0.0) * towards
        return step, margin_step

    def _line_search(self, active: np.ndarray, step: np.ndarray, margin_step: np.ndarray) -> np.ndarray:
        """Step lengths by halving; the margins are linear in the step, so no product is needed."""
        weights, margins = self.weights[:, active], self.margins[:, active]
        loss = self._loss(weights, margins, active)
        slope = (self.gradient[:, active] * step).sum(axis=0)
        slack = 1e-13 * np.abs(loss)  # near the optimum the decrease is below rounding
        lengths = np.ones(len(active))
        for _ in range(40):
            tried = self._loss(weights + lengths * step, margins + lengths * margin_step, active)
            failed = tried > loss + _ARMIJO * lengths * slope + slack
            if not failed.any():
                return lengths
            lengths[failed] /= 2
        return np.where(failed, 0.0, lengths)


def residual_target(norm: np.ndarray, start_norm: np.ndarray) -> np.ndarray:
    """Residual at which the conjugate gradients stop: tighter near the optimum, for superlinear convergence.

    Reference: Nocedal & Wright, "Numerical optimization", 2nd ed., eq. 7.3.
    """
    return np.minimum(0.5, np.sqrt(norm / start_norm)) * norm
