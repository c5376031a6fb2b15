"""The reading `direction`: where texts lie along a direction, in units of the gap between its two classes before."""

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import ERROR_COLUMNS, error_of, vector_matrix
from poolbench.errors import CellError, InputError, shown
from poolbench.statuses import Status
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.valence.reading import Reading, first_errors, in_state, missing_vector

CI_METHOD = "bootstrap over groups, percentile, conditional on direction and gap"


def direction_reading(
    passages: Passages, before: PooledVectors, after: PooledVectors, directions: pa.Table, name: str
) -> Reading:
    """Return the reading along the direction `name` of a DIRECTIONS table.

    Raise InputError if the table has no such direction, or one of another width than the vectors.
    """
    rows = [np.array([row]) for row in range(len(passages.ids))]
    errors = first_errors(*([missing_vector(vectors, row) for row in rows] for vectors in (before, after)))
    measured = np.array([row for row, error in enumerate(errors) if error is None], dtype=int)
    vector_W, gap, error = np.zeros(before.width), 1.0, None
    try:
        vector_W = _vector(directions, name, before.width)
        gap = _gap(_projections(before, measured, vector_W), passages.labels[measured])
    except CellError as found:
        error = found

    def values(vectors: PooledVectors) -> np.ndarray:
        """Return the value of each measured text [n]. Raise CellError if a text has no vector."""
        missing = missing_vector(vectors, measured)
        if missing is not None:
            raise missing
        return _projections(vectors, measured, vector_W) / gap

    return Reading(
        names=passages.ids,
        groups=(None,) * len(passages.ids),
        errors=errors,
        measured=measured,
        units=passages.groups[measured],
        values=values,
        ci_method=CI_METHOD,
        error=error,
    )


def _projections(vectors: PooledVectors, rows: np.ndarray, vector_W: np.ndarray) -> np.ndarray:
    return np.asarray((vectors.matrix_nW[rows] * vector_W).sum(axis=1))


def _vector(directions: pa.Table, name: str, width: int) -> np.ndarray:
    """Return the direction [W]; its norm does not matter, because values are divided by the gap along it."""
    ids = directions["direction_id"].to_pylist()
    if name not in ids:
        raise InputError(f"the directions have no {shown(name)}; they are {', '.join(map(str, ids))}")
    row = directions.slice(ids.index(name), 1)
    (columns,) = row.select(list(ERROR_COLUMNS)).to_pylist()
    if columns["status"] not in (None, Status.OK):
        error = in_state(f"direction {name}", error_of(columns))
        assert error is not None
        raise error
    vector_W = vector_matrix(row["vector"])[0].astype(np.float64)
    if len(vector_W) != width:
        raise InputError(f"direction {name} has width {len(vector_W)}, and the vectors have width {width}")
    return vector_W


def _gap(projections_n: np.ndarray, labels_n: np.ndarray) -> float:
    """Return the mean projection of the positives minus the negatives'; raise CellError if it cannot be a unit."""
    if len(np.unique(labels_n)) < 2:
        reason = f"the {len(labels_n)} passages with a vector in both states are not of two classes"
        raise CellError(Status.TOO_FEW, reason)
    gap = float(projections_n[labels_n == 1].mean() - projections_n[labels_n == 0].mean())
    if not np.isfinite(gap):
        raise CellError(Status.NON_FINITE, f"the gap of the classes along the direction is {gap}")
    if gap <= 0:
        reason = f"the gap of the classes along the direction is {gap:.3g}, and must be above 0"
        raise CellError(Status.REVERSED if gap < 0 else Status.COLLAPSED, reason)
    return gap
