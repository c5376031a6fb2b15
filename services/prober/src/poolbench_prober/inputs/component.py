"""The common component of the vectors of a whole run, and vectors without it.

Reference: Arora, Liang and Ma (2017), A simple but tough-to-beat baseline for sentence embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa
from scipy.linalg import eigh

from poolbench.contracts.tables import ERROR_COLUMNS, error_of, vector_matrix
from poolbench.directions import Direction
from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench_prober.inputs.vectors import PooledVectors

COMPONENT = "common_component"


def common_component(matrices: Iterable[np.ndarray]) -> Direction:
    """Return the first right singular vector, uncentred, of the finite rows of all matrices together.

    It is the leading eigenvector of the sum of V'V, so only one matrix is in memory at a time. Its sign is arbitrary.

    Args:
        matrices: Vectors [n, D] in float64, rows that failed NaN.

    Returns:
        The unit vector [D], with the singular value as its `raw_norm`.

    Raises:
        CellError: `failed` where no row is finite or widths differ, `collapsed` where all are zero.
    """
    gram_DD, num_rows = np.zeros((1, 1)), 0
    for matrix_nD in matrices:
        if num_rows and matrix_nD.shape[1] != len(gram_DD):
            raise CellError(
                Status.FAILED, f"the concepts' vectors have the widths {len(gram_DD)} and {matrix_nD.shape[1]}"
            )
        finite_nD = matrix_nD[np.isfinite(matrix_nD).all(axis=1)]
        gram_DD, num_rows = gram_DD + finite_nD.T @ finite_nD, num_rows + len(finite_nD)
    if num_rows == 0:
        raise CellError(
            Status.FAILED, "no concept of the run has a finite train vector to find the common component in"
        )
    last = len(gram_DD) - 1
    values, vectors_D1 = eigh(gram_DD, subset_by_index=[last, last])
    if values[0] <= 0:
        raise CellError(Status.COLLAPSED, "the train vectors of all concepts are zero: they have no common component")
    return Direction(COMPONENT, vectors_D1[:, 0], float(np.sqrt(values[0])), None)


def without_component(vectors: PooledVectors, component: pa.Table) -> PooledVectors:
    """Return rows v - u (u . v), where u is the component in a DIRECTIONS table; without it, no row is usable."""
    (row,) = component.select([name for name in ERROR_COLUMNS if name in component.column_names]).to_pylist()
    if row["status"] is not None:
        return _unusable(vectors, error_of(row))
    unit_D = vector_matrix(component["vector"])[0].astype(np.float64)
    unit_D /= np.linalg.norm(unit_D)
    matrix_nD = vectors.matrix_nW
    if matrix_nD.shape[1] != len(unit_D):
        reason = f"the component has width {len(unit_D)}, vectors {matrix_nD.shape[1]}"
        return _unusable(vectors, CellError(Status.FAILED, reason))
    return replace(vectors, matrix_nW=matrix_nD - np.outer(matrix_nD @ unit_D, unit_D))


def _unusable(vectors: PooledVectors, error: CellError) -> PooledVectors:
    """Return no usable row; rows that had failed before keep their own reason."""
    rows = range(len(vectors.usable))
    return replace(
        vectors,
        matrix_nW=np.full_like(vectors.matrix_nW, np.nan),
        usable=np.zeros_like(vectors.usable),
        errors=tuple(error if vectors.usable[row] else vectors.errors[row] for row in rows),
    )
