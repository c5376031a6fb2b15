"""Preconditioned conjugate gradients for the Newton steps of many probes, in dual coordinates.

A step of the weights is S'a, so vectors are held as a [B, n, P, k] together with K a, and inner products are a'K a.
By recurrence each iteration needs one product with K only, shared by all probes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from poolbench.cancellation import check_cancelled
from poolbench_prober.solver.backend import Array, Backend
from poolbench_prober.solver.interface import Curvature
from poolbench_prober.solver.kernel import Kernel, Preconditioner, RitzBasis

MAX_STEPS = 500
#: Probes leave the products in whole steps of columns: a BLAS takes as long for 9 columns as for 16.
_COLUMN_STEP = 8


@dataclass
class Dual:
    """One vector (S'a, b) per probe."""

    rows: Array  # a [B, n, P, k]
    image: Array  # K a [B, n, P, k]
    intercept: Array  # b [B, 1, P, k]

    def dot(self, other: Dual) -> Array:
        """Return inner products in the weights and intercept [B, P]."""
        return (self.rows * other.image).sum((1, 3)) + (self.intercept * other.intercept).sum((1, 3))

    def norm(self, backend: Backend) -> Array:
        """Return norms [B, P]."""
        return backend.xp.sqrt(backend.xp.clip(self.dot(self), min=0.0))

    def take(self, probes: Array) -> Dual:
        """Return some of the probes."""
        return Dual(self.rows[:, :, probes], self.image[:, :, probes], self.intercept[:, :, probes])

    def plus(self, other: Dual, factor: Array) -> Dual:
        """Return this + factor * other, for a factor [B, 1, P, 1]."""
        return Dual(
            self.rows + factor * other.rows,
            self.image + factor * other.image,
            self.intercept + factor * other.intercept,
        )

    def cast(self, backend: Backend, single: bool) -> Dual:
        """Return the vectors in float32 or float64."""
        return Dual(*(backend.cast(part, single) for part in (self.rows, self.image, self.intercept)))


def columns(values_BnPk: Array) -> Array:
    """Return the probes' outputs side by side [B, n, P * k]."""
    return values_BnPk.reshape(*values_BnPk.shape[:2], -1)


class Projection:
    """Remove the null space of K if the whole spectrum is known, or else the constant vector.

    In exact arithmetic, this component has no effect. In finite precision, it grows into noise in K's large directions.
    """

    def __init__(self, ritz: RitzBasis, mask_Bn11: Array) -> None:
        self._ritz, self._mask = ritz, mask_Bn11
        self._num_rows = mask_Bn11.sum(1)[:, None]

    @property
    def complete(self) -> bool:
        """Return whether all of the null space is known."""
        return self._ritz.complete

    def __call__(self, rows_BnPk: Array) -> Array:
        """Remove the component from the rows."""
        if self._ritz.complete:
            vectors = self._ritz.vectors_Bnr
            return (vectors @ (vectors.mT @ columns(rows_BnPk))).reshape(rows_BnPk.shape)
        return (rows_BnPk - rows_BnPk.sum(1)[:, None] / self._num_rows) * self._mask


class NewtonSystem:
    """The Hessian of some probes at a point, in one precision."""

    def __init__(
        self, kernel: Kernel, ritz: RitzBasis, curvature: Curvature, mask_Bn11: Array, backend: Backend, single: bool
    ) -> None:
        self._kernel, self._backend = kernel, backend
        self._project = Projection(ritz, backend.cast(mask_Bn11, single))
        total_B1Pk = backend.xp.clip(curvature.diagonal().sum(1)[:, None], min=1e-300)
        mean_BPk = (total_B1Pk / mask_Bn11.sum(1)[:, None])[:, 0]
        self._preconditioner = Preconditioner(ritz, mean_BPk.reshape(len(mean_BPk), -1), backend, single)
        self._intercept = backend.cast(backend.xp.clip(total_B1Pk, min=1e-30), single)
        self._curvature = curvature.cast(backend, single)
        self._num_outputs = mean_BPk.shape[-1]

    def solve(self, residual: Dual, target_BP: Array, live_BP: Array) -> tuple[Array, Array]:
        """Return the steps with a residual of at most `target_BP`, or zero for a probe that is not live.

        Args:
            residual: Minus the gradient.
            target_BP: Norm of the residual at which a probe is done.
            live_BP: Probes to solve.

        Returns:
            The steps' dual coordinates [B, n, P, k] and intercepts [B, 1, P, k].
        """
        towards = self._precondition(residual)
        zero = 0 * residual.rows, 0 * residual.intercept
        search = _Search(residual, towards, residual.dot(towards), target_BP, live_BP, *zero)
        found_rows, found_intercept = 0 * residual.rows, 0 * residual.intercept
        remaining = np.arange(residual.rows.shape[2])
        for _ in range(MAX_STEPS):
            check_cancelled()
            needed = self._advance(search)
            unfinished = self._kept(needed)
            if len(unfinished) < len(remaining):  # those that are done leave the products
                found_rows[:, :, remaining], found_intercept[:, :, remaining] = search.rows, search.intercept
                if unfinished.size == 0:
                    return found_rows, found_intercept
                remaining = remaining[unfinished]
                search.take(unfinished)
                self._take(unfinished)
        found_rows[:, :, remaining], found_intercept[:, :, remaining] = search.rows, search.intercept
        return found_rows, found_intercept

    def _kept(self, needed_P: np.ndarray) -> np.ndarray:
        """Return the probes that need another iteration, filled up to a number of columns that is fast."""
        count = int(needed_P.sum())
        if count > 1:
            step = max(1, _COLUMN_STEP // self._num_outputs)
            count = step // 2 if count <= step // 2 else -(-count // step) * step
        first = np.argsort(~needed_P, kind="stable")[:count]
        return np.sort(first)

    def _advance(self, search: _Search) -> np.ndarray:
        """Do one iteration of the live probes; return which probes [P] still needed one."""
        xp = self._backend.xp
        search.live = search.live & (search.residual.norm(self._backend) > search.target)
        needed: np.ndarray = np.any(self._backend.numpy(search.live), axis=0)
        if not needed.any():
            return needed
        change = self._times(search.towards)
        bend = search.towards.dot(change)
        search.live = search.live & (bend > 0)
        length = _quotient(search.energy, bend, search.live, xp)
        search.rows = search.rows + length * search.towards.rows
        search.intercept = search.intercept + length * search.towards.intercept
        search.residual = search.residual.plus(change, -length)
        scaled = self._precondition(search.residual)
        energy = search.residual.dot(scaled)
        search.towards = scaled.plus(search.towards, _quotient(energy, search.energy, search.live, xp))
        search.energy = energy
        return needed

    def _take(self, probes: np.ndarray) -> None:
        outputs = (probes[:, None] * self._num_outputs + np.arange(self._num_outputs)).ravel()
        self._preconditioner.take(outputs)
        self._curvature = self._curvature.take(probes)
        self._intercept = self._intercept[:, :, probes]

    def _precondition(self, residual: Dual) -> Dual:
        rows, image = self._preconditioner.apply(columns(residual.rows), columns(residual.image))
        shape = residual.rows.shape
        scaled = rows.reshape(shape), image.reshape(shape), residual.intercept / self._intercept
        if self._num_outputs > 1:
            # A change that all classes share changes no probability, and no gradient has such a part. The
            # preconditioner, which takes the classes one by one, would bring it in, and its curvature is far smaller.
            scaled = tuple(part - part.mean(-1)[..., None] for part in scaled)
        return Dual(*scaled)

    def _times(self, towards: Dual) -> Dual:
        """Return the Hessian times `towards`."""
        weighed = self._curvature.apply(towards.image + towards.intercept)
        rows = self._project(towards.rows + weighed)
        image = self._kernel.product(columns(rows)).reshape(rows.shape)
        return Dual(rows, image, weighed.sum(1)[:, None])


@dataclass
class _Search:
    """State of the iteration; `rows` and `intercept` are the step so far."""

    residual: Dual
    towards: Dual
    energy: Array
    target: Array
    live: Array
    rows: Array
    intercept: Array

    def take(self, probes: np.ndarray) -> None:
        """Keep some probes."""
        self.residual, self.towards = self.residual.take(probes), self.towards.take(probes)
        self.rows, self.intercept = self.rows[:, :, probes], self.intercept[:, :, probes]
        for name in ("energy", "target", "live"):
            setattr(self, name, getattr(self, name)[:, probes])


def _quotient(above_BP: Array, below_BP: Array, live_BP: Array, xp: Any) -> Array:
    """Return the quotients [B, 1, P, 1] of live probes, 0 for the others."""
    quotient = xp.where(live_BP, above_BP / xp.where(live_BP, below_BP, 1 + 0 * below_BP), 0 * above_BP)
    return quotient[:, None, :, None]
