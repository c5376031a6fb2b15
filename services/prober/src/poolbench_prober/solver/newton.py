"""Newton's method for many probes at once: steps by conjugate gradients, mostly in float32, refined in float64.

Gradient, margins and step lengths are in float64, so float32 affects only the quality of a step. A probe that a
float32 step does not improve continues in float64 with the whole spectrum of the kernel (rank-deficient rows at large
C).
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np

from poolbench.cancellation import check_cancelled
from poolbench_prober.solver.backend import Array, Backend
from poolbench_prober.solver.conjugate import Dual, NewtonSystem, Projection, columns
from poolbench_prober.solver.interface import Loss
from poolbench_prober.solver.kernel import Kernel, RitzBasis

MAX_NEWTON_STEPS = 100
#: Largest relative error of the weights of a probe that counts as converged.
ACCURACY = 1e-3
#: Steps in float64 without progress after which a probe is given up.
_MAX_STUCK = 8
#: Part of the largest possible gradient under which the gradient at zero weights counts as none.
_NOISE_FLOOR = 1e-6


class Newton:
    """State of B problems with P probes of k outputs each. If `single` is true, steps may be in float32."""

    def __init__(self, kernel: Kernel, loss: Loss, mask_Bn: Array, backend: Backend, single: bool = True) -> None:
        self.backend, self.loss = backend, loss
        self.mask = mask_Bn[:, :, None, None]
        num_problems, num_rows, self.num_probes, num_outputs = loss.targets.shape
        self.kernel, self.num_rows = kernel, num_rows
        fast = kernel.single(backend)
        leading = RitzBasis.leading(fast, num_rows, num_problems, backend)
        self.single = fast, leading
        self.project = Projection(leading, self.mask)
        self.dual = backend.zeros(*loss.targets.shape)
        self.intercept = backend.zeros(num_problems, 1, self.num_probes, num_outputs)
        self.margins = backend.zeros(*loss.targets.shape)
        self.gradient = self._gradient(slice(None))
        self.norm = self.gradient.norm(backend)
        # Where the classes have equal means (pairs of one vector), the gradient at zero is rounding noise
        # and zero weights are the optimum: measured against the largest possible gradient, not against noise.
        count_B1 = mask_Bn.sum(1)[:, None]
        largest_BP = loss.scale.amax((1, 3)) if backend.device else loss.scale.max((1, 3))
        largest_BP = largest_BP * 0.5 * backend.xp.sqrt(count_B1 * (kernel.trace()[:, None] + count_B1))
        self.start_norm = backend.xp.maximum(self.norm, _NOISE_FLOOR * largest_BP)
        self.weight_norm = 0 * self.norm
        shape = (num_problems, self.num_probes)
        self.num_steps, self.num_stuck = np.zeros(shape, dtype=int), np.zeros(shape, dtype=int)
        self.double, self.given_up = np.full(shape, not single), np.zeros(shape, dtype=bool)

    def solve(self, tolerance: float, hopeless: Callable[[], np.ndarray] | None = None) -> None:
        """Take steps until every probe has converged or is given up, for at most `MAX_NEWTON_STEPS` steps.

        Args:
            hopeless: Function that is called after each step and returns further probes to give up [B, P].
        """
        for _ in range(MAX_NEWTON_STEPS):
            check_cancelled()
            active = ~self.converged(self.norm, tolerance) & ~self.given_up
            if not active.any():
                return
            for single in (True, False):
                probes = active & (self.double != single)
                if probes.any():
                    self._step(probes, single)
            if hopeless is not None:
                self.given_up |= hopeless()

    def converged(self, norm_BP: Array, tolerance: float) -> np.ndarray:
        """Return whether gradients of these norms are small compared with the gradient at zero and the weights [B, P].

        Once the intercept is settled the Hessian is at least the identity, so that the gradient's norm bounds the
        distance to the optimum. Where the weights are zero themselves, a gradient that much smaller must do.
        """
        small = norm_BP <= tolerance * self.start_norm
        close = norm_BP <= ACCURACY * self.weight_norm
        tiny = norm_BP <= ACCURACY * tolerance * self.start_norm
        return self.backend.numpy(small & (close | tiny))

    @cached_property
    def spectrum(self) -> RitzBasis:
        """Compute the whole spectrum of the kernel at first need, and use it to project later gradients."""
        spectrum = RitzBasis.spectrum(self.kernel, self.num_rows, self.backend)
        self.project = Projection(spectrum, self.mask)
        return spectrum

    def unprojected(self) -> Array:
        """Return dual coordinates of the gradient, less their mean only: convergence is judged without projection."""
        rows = self.dual + self.loss.residual(self.margins)
        return (rows - rows.sum(1)[:, None] / self.mask.sum(1)[:, None]) * self.mask

    @property
    def ratio(self) -> np.ndarray:
        """Return the gradient norm divided by the gradient norm at zero weights [B, P]."""
        return self.backend.numpy(self.norm / self.start_norm)

    def _step(self, chosen_BP: np.ndarray, single: bool) -> None:
        """Take one step of the chosen probes."""
        probes = np.flatnonzero(chosen_BP.any(axis=0))
        chosen_BP = chosen_BP[:, probes]
        before = self.ratio[:, probes]
        direction = self._direction(probes, chosen_BP, single)
        lengths = self._lengths(probes, direction, chosen_BP)
        factor = lengths[:, None, :, None]
        self.dual[:, :, probes] += factor * direction.rows
        self.intercept[:, :, probes] += factor * direction.intercept
        self.margins[:, :, probes] += factor * (direction.image + direction.intercept) * self.mask
        if self.project.complete:
            self._settle(probes)
        fresh = self._gradient(probes)
        for name in ("rows", "image", "intercept"):
            getattr(self.gradient, name)[:, :, probes] = getattr(fresh, name)
        self.norm[:, probes] = fresh.norm(self.backend)
        square = (self.dual * (self.margins - self.intercept)).sum((1, 3))
        self.weight_norm = self.backend.xp.sqrt(self.backend.xp.clip(square, min=0.0))
        self._judge(probes, chosen_BP, before, self.backend.numpy(lengths), single)

    def _settle(self, probes: np.ndarray) -> None:
        """Set the dual to the optimum's, minus the residual, where K is rounding noise; CG does not see that part.

        What grew there by rounding is not negligible once it is multiplied by S': near-duplicate rows differ in it.
        """
        residual = self.loss.take(probes).residual(self.margins[:, :, probes])
        unsettled = self.dual[:, :, probes] + residual
        settled = self.dual[:, :, probes] - (unsettled - self.project(unsettled))
        self.dual[:, :, probes] = settled
        self.margins[:, :, probes] = (self._product(settled) + self.intercept[:, :, probes]) * self.mask

    def _judge(
        self, probes: np.ndarray, active: np.ndarray, before: np.ndarray, lengths: np.ndarray, single: bool
    ) -> None:
        """Count the step; change precision or give up where it did not help."""
        self.num_steps[:, probes] += active
        stuck = active & ~(self.ratio[:, probes] < 0.9 * before)
        if single:
            self.double[:, probes] |= stuck
            return
        self.num_stuck[:, probes] = np.where(stuck, self.num_stuck[:, probes] + 1, 0)
        self.given_up[:, probes] |= stuck & ((self.num_stuck[:, probes] > _MAX_STUCK) | (lengths == 0))

    def _gradient(self, probes: np.ndarray | slice) -> Dual:
        residual = self.loss.take(probes).residual(self.margins[:, :, probes])
        rows = self.project(self.dual[:, :, probes] + residual)
        return Dual(rows, self._product(rows), residual.sum(1)[:, None])

    def _product(self, rows: Array) -> Array:
        return self.kernel.product(columns(rows)).reshape(rows.shape)

    def _direction(self, probes: np.ndarray, chosen_BP: np.ndarray, single: bool) -> Dual:
        """Return the approximate Newton step of each probe; its image is exact."""
        backend = self.backend
        curvature = self.loss.take(probes).curvature(self.margins[:, :, probes])
        norm_BP = self.norm[:, probes]
        unit = backend.xp.clip(norm_BP, min=1e-300)[:, None, :, None]
        gradient = self.gradient.take(probes)
        residual = Dual(-gradient.rows / unit, -gradient.image / unit, -gradient.intercept / unit)
        kernel, ritz = self.single if single else (self.kernel, self.spectrum)
        system = NewtonSystem(kernel, ritz, curvature, self.mask, backend, single)
        rows, intercept = system.solve(
            residual.cast(backend, single),
            forcing(norm_BP / self.start_norm[:, probes], backend, single),
            backend.raw(chosen_BP),
        )
        rows, intercept = backend.cast(rows, False) * unit, backend.cast(intercept, False) * unit
        return Dual(rows, self._product(rows), intercept)

    def _lengths(self, probes: np.ndarray, direction: Dual, chosen_BP: np.ndarray) -> Array:
        """Return lengths [B, P] at which the slope along the step is near 0, by the secant rule from 1.

        Near the optimum, slopes are more precise than differences of the loss. The loss is convex, so the slope rises.
        """
        xp, loss = self.backend.xp, self.loss.take(probes)
        margins, step = self.margins[:, :, probes], (direction.image + direction.intercept) * self.mask
        penalty_slope = (self.dual[:, :, probes] * direction.image).sum((1, 3))
        square = (direction.rows * direction.image).sum((1, 3))

        def slope(lengths: Array) -> Array:
            residual = loss.residual(margins + lengths[:, None, :, None] * step)
            return (residual * step).sum((1, 3)) + penalty_slope + lengths * square

        start = slope(0 * penalty_slope)
        lengths = xp.where(self.backend.raw(chosen_BP) & (start < 0), 1.0 + 0 * penalty_slope, 0 * penalty_slope)
        for _ in range(60):
            slopes = slope(lengths)
            over = (slopes > -0.1 * start) & (lengths > 0)
            if not self.backend.numpy(over).any():
                break
            shrink = xp.clip(start / xp.where(over, start - slopes, 1 + 0 * slopes), min=0.1, max=0.9)
            lengths = xp.where(over, lengths * shrink, lengths)
        return lengths


def forcing(ratio: Array, backend: Backend, single: bool) -> Array:
    """Return the fraction of the gradient at which conjugate gradients stop, which shrinks near the optimum.

    Reference: Nocedal & Wright, "Numerical optimization", 2nd ed., eq. 7.3. The lower bound is the resolution of the
    precision.
    """
    return backend.xp.clip(backend.xp.sqrt(ratio), min=3e-2 if single else 1e-8, max=0.5)
