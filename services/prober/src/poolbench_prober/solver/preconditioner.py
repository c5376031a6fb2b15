"""An approximate inverse of the Hessian from the leading eigenvectors of the kernel.

With mean curvature c the Hessian is near I + c S'S. Its inverse is exact on the leading eigenvectors (which carry
nearly all of the spread of hidden states) and one number elsewhere. It needs products with thin matrices only: the
decomposition of an n x n matrix costs more than everything else and is slow on GPUs. Where that is not enough
(rank-deficient rows at a large C), the complete spectrum is used.

Reference: Halko, Martinsson & Tropp (2011), "Finding structure with randomness", algorithm 4.4 (subspace
iteration with Rayleigh-Ritz).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from poolbench_prober.solver.backend import Array, Backend
from poolbench_prober.solver.kernel import Kernel

RANK = 128
_NUM_ITERATIONS = 2
#: Ritz values under this part of the largest are rounding noise of float32.
_NOISE = 1e-6


@dataclass(frozen=True)
class RitzBasis:
    """Ritz pairs of K.

    Attributes:
        values_Br: Ritz values; infinite where a vector carries nothing, so that it is left out.
        vectors_Bnr: U with U'U = I and U'KU diagonal.
        images_Bnr: K U.
        tail_B: Size of the eigenvalues that the basis leaves out.
        complete: Whether the vectors span all that K sees.
    """

    values_Br: Array
    vectors_Bnr: Array
    images_Bnr: Array
    tail_B: Array
    complete: bool = False

    @classmethod
    def leading(cls, kernel: Kernel, num_rows: int, num_problems: int, backend: Backend) -> RitzBasis:
        """Return the leading `RANK` Ritz pairs in float32, from a fixed start; `kernel` in float32."""
        xp, rank = backend.xp, min(RANK, num_rows)
        start_nr = np.random.default_rng(0).standard_normal((num_rows, rank), dtype=np.float32)
        basis = backend.raw(np.tile(start_nr, (num_problems, 1, 1)))
        for _ in range(_NUM_ITERATIONS):
            basis, _ = xp.linalg.qr(kernel.product(basis))
        images = kernel.product(basis)
        small = backend.cast(basis.mT @ images, single=False)
        values, rotation = xp.linalg.eigh((small + small.mT) / 2)
        rest = (kernel.trace() - values.sum(-1)) / max(num_rows - rank, 1)
        tail = xp.clip(xp.where(rest < values[:, 0], rest, values[:, 0]), min=0.0)
        values = xp.where(values > _NOISE * values[:, -1:], values, values * 0 + np.inf)
        rotation = backend.cast(rotation, single=True)
        return cls(values, basis @ rotation, images @ rotation, tail)

    @classmethod
    def spectrum(cls, kernel: Kernel, num_rows: int, backend: Backend) -> RitzBasis:
        """Return all eigenvectors of K whose eigenvalues are more than rounding noise; the others are zero columns."""
        xp = backend.xp
        if kernel.gram_Bnn is not None:
            values, vectors = xp.linalg.eigh(kernel.gram_Bnn)
        else:
            assert kernel.rows_BnD is not None
            values, right = xp.linalg.eigh(kernel.rows_BnD.mT @ kernel.rows_BnD)
            vectors = kernel.rows_BnD @ right / xp.sqrt(xp.clip(values, min=1e-300))[:, None, :]
        kept = values > values[:, -1:] * num_rows * np.finfo(np.float64).eps
        vectors = xp.where(kept[:, None, :], vectors, 0 * vectors)
        images = vectors * values[:, None, :]
        return cls(xp.where(kept, values, 0 * values + np.inf), vectors, images, 0 * values[:, 0], complete=True)


class Preconditioner:
    """Inverse of I + c S'S in dual coordinates (a stands for S'a), with one c for each column."""

    def __init__(self, ritz: RitzBasis, curvature_Bm: Array, backend: Backend, single: bool) -> None:
        self._ritz = ritz
        elsewhere_B1m = 1 / (1 + curvature_Bm * ritz.tail_B[:, None])[:, None, :]
        values_Br1 = ritz.values_Br[:, :, None]
        extra_Brm = (1 / (1 + curvature_Bm[:, None, :] * values_Br1) - elsewhere_B1m) / values_Br1
        self._elsewhere = backend.cast(elsewhere_B1m, single)
        self._extra = backend.cast(extra_Brm, single)

    def take(self, columns: Array) -> None:
        """Keep some columns."""
        self._elsewhere, self._extra = self._elsewhere[..., columns], self._extra[..., columns]

    def apply(self, residual_Bnm: Array, image_Bnm: Array) -> tuple[Array, Array]:
        """Return the preconditioned residual z and K z, given K times the residual."""
        part_Brm = self._extra * (self._ritz.vectors_Bnr.mT @ image_Bnm)
        step = self._elsewhere * residual_Bnm + self._ritz.vectors_Bnr @ part_Brm
        return step, self._elsewhere * image_Bnm + self._ritz.images_Bnr @ part_Brm
