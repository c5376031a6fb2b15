"""The table of predictions, for tests between models and for examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import predictions_schema, table_from_rows
from poolbench.errors import CellError
from poolbench_prober.probing.outcomes import Outcome, TaskProbes
from poolbench_prober.probing.targets import Targets


def predictions_table(probes: TaskProbes) -> pa.Table:
    """Return the predictions for dev and test of every seed, and the instances without a vector; no more if all failed.

    Rows are in the order of seeds, splits and instance ids, so that no order of inputs changes the table.
    """
    targets, usable = probes.targets, probes.kept
    schema = predictions_schema(pa.float64() if targets.is_regression else pa.string())
    left_out = [_left_out(targets, row, error) for row, error in probes.left_out().items()]
    tables = [_of_split(outcome, split, usable, schema) for outcome in probes.outcomes for split in ("dev", "test")]
    tables.append(table_from_rows(sorted(left_out, key=lambda row: row["instance_id"]), schema))
    return pa.concat_tables(tables).combine_chunks()


def _of_split(outcome: Outcome, split: str, targets: Targets, schema: pa.Schema) -> pa.Table:
    rows = np.array(sorted(outcome.rows[split], key=lambda row: targets.ids[row]), dtype=int)
    control = None if isinstance(outcome.control, CellError) else outcome.control
    answers = {
        "truth": outcome.truth,
        "predicted": outcome.predicted,
        "control_truth": outcome.control_truth,
        "control_predicted": control,
    }
    columns: dict[str, Any] = {name: _named(targets, values, rows) for name, values in answers.items()}
    columns |= {
        "instance_id": [targets.ids[row] for row in rows],
        "split": [split] * len(rows),
        "seed": [outcome.seed] * len(rows),
        "seen": None if outcome.seen is None else outcome.seen[rows],
    }
    filled = {name: column for name, column in columns.items() if column is not None}
    arrays = [pa.array(filled.get(field.name, [None] * len(rows)), field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _named(targets: Targets, values: np.ndarray | None, rows: np.ndarray) -> Any:
    """Return the labels of class numbers, or real values as they are."""
    if values is None or targets.is_regression:
        return None if values is None else values[rows]
    return [targets.classes[code] for code in values[rows]]


def _left_out(targets: Targets, row: int, error: CellError) -> dict[str, Any]:
    value = targets.values[row]
    return {
        "instance_id": targets.ids[row],
        "split": None if targets.splits is None else str(targets.splits[row]),
        "truth": float(value) if targets.is_regression else targets.classes[value],
        "status": str(error.status),
        "reason": str(error),
    }
