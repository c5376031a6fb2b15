"""The prober's outputs as Arrow tables."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from poolbench.contracts import measures as contracts
from poolbench.contracts.measures import Measure
from poolbench.contracts.tables import PROBE_SCORES, directions_schema, table_from_rows, vector_column
from poolbench.directions import Direction
from poolbench.errors import CellError
from poolbench_prober.d1.cell import CellResult

#: Details that quote passages. The others reach the run's folder, which must hold nothing of a sensitive concept.
CONFIDENTIAL_DETAILS = frozenset({"control_words"})


def measures_table(measures: Iterable[Measure]) -> pa.Table:
    """Return a MEASURES table with the details that explain a value, except details that quote passages."""
    return contracts.measures_table(measures, CONFIDENTIAL_DETAILS)


def scores_table(result: CellResult) -> pa.Table:
    """Return the probe scores of a cell as a PROBE_SCORES table, with one row per passage."""
    return table_from_rows(result.scores, PROBE_SCORES)


def directions_table(
    directions: Mapping[str, Direction | CellError], width: int, readout: Mapping[str, Any] | None = None
) -> pa.Table:
    """Return a DIRECTIONS table, with null and status for a failed direction.

    The metadata has the choice of the readout as JSON.
    """
    matrix = np.zeros((len(directions), width))
    rows: list[tuple[Any, ...]] = []
    for number, (direction_id, direction) in enumerate(directions.items()):
        if isinstance(direction, CellError):
            rows.append((direction_id, None, None, direction.status, str(direction)))
        else:
            matrix[number] = direction.vector
            rows.append((direction_id, direction.raw_norm, direction.seed, None, None))
    ids, norms, seeds, statuses, reasons = zip(*rows, strict=True)
    valid = np.array([status is None for status in statuses])
    columns = [ids, vector_column(matrix, valid), norms, seeds, statuses, reasons]
    schema = directions_schema(width)
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, type=field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    notes = {"readout": json.dumps(dict(readout), sort_keys=True)} if readout else None
    return pa.Table.from_arrays(arrays, schema=schema.with_metadata(notes))
