"""D3 of representations: the cosine of two concepts' directions."""

from typing import Any

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import error_of, vector_matrix
from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench.suites.measure import Measure


def d3_rep_measure(
    directions: pa.Table,
    neighbour_directions: pa.Table,
    *,
    neighbour: str,
    relation: str,
    direction: str = "C1",
) -> Measure:
    """Return the cosine of the directions of a concept and its neighbour by one construction method.

    Args:
        directions: DIRECTIONS of the concept's (strategy, layer).
        neighbour_directions: DIRECTIONS of the neighbour's same (strategy, layer).
        neighbour: Id of the neighbour.
        relation: `ld` or `lc`.
        direction: Construction method.
    """
    metric = f"d3.rep_{relation}"
    fields: dict[str, Any] = {"neighbour": neighbour, "direction": direction}
    try:
        first = direction_vector(directions, direction)
        second = direction_vector(neighbour_directions, direction)
    except CellError as error:
        return Measure.failed(metric, error, **fields)
    return Measure.of(metric, float(np.clip(first @ second, -1, 1)), **fields)


def direction_vector(table: pa.Table, direction: str) -> np.ndarray:
    """Return one construction's direction in a DIRECTIONS table, float64 [D].

    Raises:
        CellError: With the status of a direction that could not be computed; `failed` if the table lacks it.
    """
    ids = table["direction_id"].to_pylist()
    if direction not in ids:
        raise CellError(Status.FAILED, f"no direction {direction} among {', '.join(ids)}")
    row = ids.index(direction)
    if not table["vector"][row].is_valid:
        found = table.slice(row, 1).drop_columns(["vector"]).to_pylist()[0]
        raise error_of(found, f"direction {direction} could not be computed")
    return vector_matrix(table["vector"])[row].astype(np.float64)
