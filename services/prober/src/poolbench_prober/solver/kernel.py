"""Inner products of standardised training rows, for a batch of problems at once.

The L2 optimum is w = S'a for standardised rows S, so a solver needs products with K = S S' only, and D plays no
further part. Columns pass through in blocks: no standardised copy of the matrix is ever held, unless there are
more rows than columns, where S is smaller than K.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from poolbench_prober.solver.backend import Array, Backend
from poolbench_prober.solver.interface import Problem

#: Columns that are standardised at a time.
BLOCK = 512


@dataclass
class Standardised:
    """The training rows of B problems, padded with zero rows to the largest number of rows."""

    problems: Sequence[Problem]  # they share the width D
    backend: Backend
    num_rows: int = field(init=False)  # rows n of the longest

    def __post_init__(self) -> None:
        self.num_rows = max(len(problem.rows) for problem in self.problems)
        # Problems of one matrix (folds) share one copy on the device.
        matrices = {id(problem.vectors_ND): problem.vectors_ND for problem in self.problems}
        self._matrices = {key: self.backend.raw(matrix) for key, matrix in matrices.items()}
        self._rows = [self.backend.raw(problem.rows) for problem in self.problems]

    @property
    def width(self) -> int:
        """Return columns D."""
        return int(self.problems[0].vectors_ND.shape[1])

    @cached_property
    def mask(self) -> np.ndarray:
        """Return 1 for a row, 0 for padding [B, n]."""
        lengths = np.array([len(problem.rows) for problem in self.problems])
        return (np.arange(self.num_rows) < lengths[:, None]).astype(np.float64)

    def blocks(self) -> Iterator[tuple[slice, Array, Array, Array]]:
        """Yield for each block: columns, rows [B, n, w], and the means and scales [B, 1, w] that were removed."""
        for start in range(0, self.width, BLOCK):
            columns = slice(start, min(start + BLOCK, self.width))
            problem_blocks = [self._block(number, columns) for number in range(len(self.problems))]
            yield columns, *(self.backend.xp.stack(parts) for parts in zip(*problem_blocks, strict=True))

    def _block(self, number: int, columns: slice) -> tuple[Array, Array, Array]:
        backend, problem = self.backend, self.problems[number]
        matrix = self._matrices[id(problem.vectors_ND)]
        block = backend.cast(matrix[:, columns][self._rows[number]], single=False)
        means = block.mean(0)
        block -= means
        scales = backend.xp.sqrt(backend.xp.einsum("nw,nw->w", block, block) / len(block))
        # A column whose spread is rounding noise of its mean is constant: zero, and so is its weight. The noise of a
        # sum grows with its length.
        varies = scales > max(1e-12, len(block) * np.finfo(np.float64).eps) * abs(means)
        scales = backend.xp.where(varies, scales, 1.0 + 0 * scales)
        block *= varies / scales
        if len(block) == self.num_rows:
            return block, means[None], scales[None]
        padded = backend.zeros(self.num_rows, block.shape[1])
        padded[: len(block)] = block
        return padded, means[None], scales[None]


@dataclass(frozen=True)
class Kernel:
    """Products with K = S S', either with K itself or with S and S' in turn."""

    gram_Bnn: Array | None = None  # K, or None
    rows_BnD: Array | None = None  # S, or None

    @classmethod
    def of(cls, standardised: Standardised) -> Kernel:
        """Return the cheaper of the two."""
        backend = standardised.backend
        num_problems, num_rows = len(standardised.problems), standardised.num_rows
        if num_rows > standardised.width:
            rows = [block for _, block, _, _ in standardised.blocks()]
            return cls(rows_BnD=backend.xp.concatenate(rows, -1))
        gram = backend.zeros(num_problems, num_rows, num_rows)
        for _, block, _, _ in standardised.blocks():
            for number, rows in enumerate(block):  # one at a time: a BLAS then computes one triangle only
                gram[number] += rows @ rows.mT
        return cls(gram_Bnn=gram)

    def product(self, right_Bnm: Array) -> Array:
        """Return K @ right."""
        if self.gram_Bnn is not None:
            return self.gram_Bnn @ right_Bnm
        assert self.rows_BnD is not None
        return self.rows_BnD @ (self.rows_BnD.mT @ right_Bnm)

    def trace(self) -> Array:
        """Return sum of the eigenvalues [B]."""
        if self.gram_Bnn is not None:
            return self.gram_Bnn.diagonal(0, 1, 2).sum(-1)
        assert self.rows_BnD is not None
        return (self.rows_BnD**2).sum((1, 2))

    def single(self, backend: Backend) -> Kernel:
        """Return a copy in float32."""
        if self.gram_Bnn is not None:
            return Kernel(gram_Bnn=backend.cast(self.gram_Bnn, single=True))
        return Kernel(rows_BnD=backend.cast(self.rows_BnD, single=True))


RANK = 128
_NUM_ITERATIONS = 2
#: Ritz values under this part of the largest are rounding noise of float32.
_NOISE = 1e-6


@dataclass(frozen=True)
class RitzBasis:
    """Ritz pairs of K."""

    values_Br: Array  # Ritz values; infinite where a vector carries nothing, so that it is left out
    vectors_Bnr: Array  # U with U'U = I and U'KU diagonal
    images_Bnr: Array  # K U
    tail_B: Array  # size of the eigenvalues that the basis leaves out
    complete: bool = False  # whether the vectors span all that K sees

    @classmethod
    def leading(cls, kernel: Kernel, num_rows: int, num_problems: int, backend: Backend) -> RitzBasis:
        """Compute the leading `RANK` Ritz pairs in float32 from a fixed start, for a `kernel` in float32."""
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
        """Compute the eigenvectors of K, with zero columns for eigenvalues within rounding noise."""
        xp = backend.xp
        if kernel.gram_Bnn is not None:
            values, vectors = xp.linalg.eigh(kernel.gram_Bnn)
        else:
            assert kernel.rows_BnD is not None
            values, right = xp.linalg.eigh(kernel.rows_BnD.mT @ kernel.rows_BnD)
            vectors = kernel.rows_BnD @ right / xp.sqrt(xp.clip(values, min=1e-300))[:, None, :]
        significant = values > values[:, -1:] * num_rows * np.finfo(np.float64).eps
        vectors = xp.where(significant[:, None, :], vectors, 0 * vectors)
        images = vectors * values[:, None, :]
        return cls(xp.where(significant, values, 0 * values + np.inf), vectors, images, 0 * values[:, 0], complete=True)


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
