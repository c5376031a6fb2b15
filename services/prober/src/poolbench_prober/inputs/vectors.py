"""Pooled vectors of one (strategy, layer), aligned with the passages, and whether they can be probed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pyarrow as pa
from scipy.linalg import eigh

from poolbench.contracts.tables import ERROR_COLUMNS, error_of, parts_of, vector_matrix
from poolbench.directions import Direction
from poolbench.errors import CellError, InputError, PoolbenchError
from poolbench.statuses import Status

MIN_COVERAGE = 0.5
MAX_CLASS_GAP = 0.05
MIN_USABLE = 0.9
#: Columns of VECTORS on attention sinks.
SINK_COLUMNS = ("num_sinks", "num_left_out")
#: Variance between passages over mean squared norm, below which the vectors are the same vector.
COLLAPSED_RATIO = 1e-8


@dataclass(frozen=True)
class PooledVectors:
    """Vectors of one split, one row per passage."""

    matrix_nW: np.ndarray  # rows of width W = P * D: vectors in float64, or parts in float32; rows that failed are NaN
    usable: np.ndarray  # rows with a finite vector [n]
    applied: np.ndarray  # rows to which the strategy applied (false: it fell back to the mean) [n]
    errors: tuple[CellError | None, ...]  # why each row has no vector, where the pooler or extractor gave a reason
    num_parts: int = 1  # parts P of a row, which a readout combines into one vector
    readout: str | None = None  # id of that readout; None where the rows are vectors
    sinks_n2: np.ndarray | None = None  # attention sinks of each passage, and those left out [n, 2]; None if unknown

    @classmethod
    def from_table(cls, table: pa.Table, passage_ids: Sequence[str]) -> Self:
        """Read the vectors of `table` in the order of `passage_ids`.

        Raise InputError unless the table has each passage exactly once.
        """
        row_of = {passage_id: row for row, passage_id in enumerate(table["passage_id"].to_pylist())}
        missing = [passage_id for passage_id in passage_ids if passage_id not in row_of]
        if missing or len(row_of) != table.num_rows:
            raise InputError(
                f"the vectors must hold each passage once: {len(missing)} of {len(passage_ids)} passages "
                f"are missing, {table.num_rows - len(row_of)} rows are duplicates"
            )
        table = table.take(pa.array([row_of[passage_id] for passage_id in passage_ids], pa.int64()))
        num_parts, readout = parts_of(table)
        matrix = vector_matrix(table["vector"])
        matrix = matrix.astype(np.float64) if readout is None else matrix
        applied = np.array([value is True for value in table["applied"].to_pylist()])  # null counts as not
        rows = table.select(list(ERROR_COLUMNS)).to_pylist()
        errors = tuple(error_of(row) if row["status"] not in (None, Status.OK) else None for row in rows)
        sinks = None
        if set(SINK_COLUMNS) <= set(table.column_names):
            sinks = np.stack([table[name].to_numpy() for name in SINK_COLUMNS], axis=1)
        return cls(matrix, _finite_rows(matrix), applied, errors, num_parts, readout, sinks)

    @classmethod
    def from_matrix(cls, matrix_nD: np.ndarray) -> Self:
        """Return vectors without a record of coverage, as if the strategy had applied to every row."""
        matrix = np.asarray(matrix_nD, dtype=np.float64)
        usable = _finite_rows(matrix)
        return cls(matrix, usable, usable, (None,) * len(matrix))

    @classmethod
    def failed(cls, count: int, width: int, error: PoolbenchError) -> Self:
        """Return vectors in which no row is usable and every row has the given error."""
        nothing = np.zeros(count, dtype=bool)
        matrix = np.full((count, width), np.nan)
        why = CellError(error.status, str(error))
        return cls(matrix, nothing, nothing, (why,) * count)

    def in_float16(self) -> "PooledVectors":
        """Round the vectors to float16. A row with a number beyond the range of float16 is not usable."""
        with np.errstate(over="ignore"):
            matrix = self.matrix_nW.astype(np.float16).astype(np.float64)
        return replace(self, matrix_nW=matrix, usable=self.usable & _finite_rows(matrix))

    @property
    def width(self) -> int:
        """Return width D of a vector."""
        return int(self.matrix_nW.shape[1]) // self.num_parts

    @property
    def coverage(self) -> float:
        """Return share of the passages to which the strategy really applied."""
        return float(self.applied.mean())

    def require_usable(self, labels: np.ndarray | None) -> np.ndarray:
        """Return the row numbers with a vector, after all checks that can rule the whole cell out.

        Args:
            labels: 1 positive, 0 negative. None if there are not two classes whose coverage could differ.

        Raises:
            CellError: `no_coverage`, `class_dependent_coverage` or `collapsed`, or if too many vectors are missing,
                the commonest status of the missing rows.
        """
        rows = self.require_present()
        _require_coverage(self.applied, labels)
        matrix_nW = self.means(rows)
        variance = matrix_nW.var(axis=0, dtype=np.float64).sum()
        if variance <= COLLAPSED_RATIO * np.square(matrix_nW, dtype=np.float64).sum(axis=1).mean():
            raise CellError(Status.COLLAPSED, "all passages have the same vector")
        return rows

    def require_present(self) -> np.ndarray:
        """Return the numbers of rows with a vector.

        Raise CellError with the commonest status if over a tenth of the rows have no vector.
        """
        rows = np.flatnonzero(self.usable)
        if len(rows) >= MIN_USABLE * len(self.usable):
            return rows
        errors = [self.errors[row] for row in np.flatnonzero(~self.usable)]
        status = Counter(error.status if error else Status.NON_FINITE for error in errors).most_common(1)[0][0]
        reason = f"{len(errors)} of {len(self.usable)} passages have no finite vector"
        example = next(filter(None, errors), None)
        raise CellError(status, reason if example is None else f"{reason}, e.g. {example}")

    def means(self, rows: np.ndarray) -> np.ndarray:
        """Return one array per row, equal for equal rows. In this class, this is the row itself."""
        return self.matrix_nW[rows]


def _finite_rows(matrix_nW: np.ndarray) -> np.ndarray:
    return np.asarray(np.isfinite(matrix_nW).all(axis=1))


def joined(parts: Sequence[PooledVectors]) -> PooledVectors:
    """Return the concatenated vectors of several parts, such as the two spans of a pair.

    A row is usable if all its parts are usable, and applied if all its parts are applied.

    Raises:
        InputError: A part has a readout, or the lengths differ.
    """
    if len(parts) == 1:
        return parts[0]
    if len({len(part.usable) for part in parts}) != 1 or any(part.readout for part in parts):
        raise InputError("the parts to join must be vectors of the same instances, and none with a readout")
    usable = np.logical_and.reduce([part.usable for part in parts])
    rows = range(len(usable))
    return PooledVectors(
        matrix_nW=np.hstack([part.matrix_nW for part in parts]),
        usable=usable,
        applied=np.logical_and.reduce([part.applied for part in parts]),
        errors=tuple(next((p.errors[row] for p in parts if not p.usable[row]), None) for row in rows),
    )


def _require_coverage(applied: np.ndarray, labels: np.ndarray | None) -> None:
    coverage = applied.mean()
    if coverage < MIN_COVERAGE:
        raise CellError(
            Status.NO_COVERAGE, f"the strategy applied to {coverage:.1%} of the passages; at least 50 % needed"
        )
    if labels is None:
        return
    shares = [applied[labels == label].mean() for label in (1, 0) if (labels == label).any()]
    if len(shares) == 2 and abs(shares[0] - shares[1]) > MAX_CLASS_GAP + 1e-12:
        raise CellError(
            Status.CLASS_DEPENDENT_COVERAGE,
            f"the strategy applied to {shares[0]:.1%} of the positives and {shares[1]:.1%} of the negatives; "
            "the fallback alone would carry the label",
        )


COMPONENT = "common_component"


def common_component(matrices: Iterable[np.ndarray]) -> Direction:
    """Return the first right singular vector, uncentred, of the finite rows of all matrices together.

    The vector is the leading eigenvector of the sum of V'V, so only one matrix is in memory at a time. The sign is
    arbitrary.

    Args:
        matrices: Vectors [n, D] in float64. Failed rows are NaN.

    Returns:
        The unit vector [D], with the singular value as its `raw_norm`.

    Raises:
        CellError: `failed` if no row is finite or widths differ, `collapsed` if all rows are zero.
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
    """Return rows v - u (u . v), where u is the component in a DIRECTIONS table. Without u, no row is usable."""
    (row,) = component.select(list(ERROR_COLUMNS)).to_pylist()
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
    """Return vectors without a usable row; rows that had failed before keep their own reason."""
    rows = range(len(vectors.usable))
    return replace(
        vectors,
        matrix_nW=np.full_like(vectors.matrix_nW, np.nan),
        usable=np.zeros_like(vectors.usable),
        errors=tuple(error if vectors.usable[row] else vectors.errors[row] for row in rows),
    )
