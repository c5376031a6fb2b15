"""The result schema: one row per figure, one schema for every suite."""

import json
import math
from typing import Any

import pyarrow as pa

from poolbench.contracts import Row
from poolbench.contracts.keys import canonical_json, digest
from poolbench.statuses import Status

RESULT_SCHEMA = pa.schema(
    [
        ("run_id", pa.string()),
        ("cell_id", pa.string()),
        ("suite", pa.string()),
        ("protocol", pa.string()),
        ("budget", pa.string()),
        ("task", pa.string()),
        ("model", pa.string()),
        ("model_revision", pa.string()),
        ("dataset", pa.string()),
        ("dataset_revision", pa.string()),
        ("split", pa.string()),
        ("layer", pa.int32()),
        ("strategy", pa.string()),
        ("strategy_version", pa.int32()),
        ("entrant", pa.string()),
        ("direction", pa.string()),
        ("concept", pa.string()),
        ("neighbour", pa.string()),
        ("scorer", pa.string()),
        ("strength", pa.float64()),
        ("alpha_unit", pa.string()),
        ("opening_set", pa.string()),
        ("params", pa.string()),
        ("metric", pa.string()),
        ("metric_version", pa.int32()),
        ("higher_is_better", pa.bool_()),
        ("value", pa.float64()),
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("ci_method", pa.string()),
        ("n", pa.int64()),
        ("num_groups", pa.int64()),
        ("coverage", pa.float64()),
        ("seed", pa.int64()),
        ("status", pa.string()),
        ("reason", pa.string()),
        ("wall_s", pa.float64()),
        ("device_s", pa.float64()),
        ("peak_bytes", pa.int64()),
        ("code_version", pa.string()),
        ("config_hash", pa.string()),
        ("created_at", pa.string()),
    ]
)

#: How parallel two strategies' directions of one construction are: one row per pair.
COSINE_SCHEMA = pa.schema(
    [
        ("model", pa.string()),
        ("layer", pa.int32()),
        ("concept", pa.string()),
        ("direction", pa.string()),
        ("strategy_a", pa.string()),
        ("strategy_b", pa.string()),
        ("cosine", pa.float64()),
        ("status", pa.string()),
        ("reason", pa.string()),
    ]
)

#: What else than the concept separates the classes of a run's corpora: one row per concept and check.
AUDIT_SCHEMA = pa.schema(
    [
        ("concept", pa.string()),
        ("verdict", pa.string()),
        ("verdict_reason", pa.string()),
        ("check", pa.string()),
        ("kind", pa.string()),
        ("value", pa.float64()),
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("limit", pa.float64()),
        ("status", pa.string()),
        ("reason", pa.string()),
    ]
)

#: What identifies a cell; everything else describes how its value came about.
IDENTITY = (
    "suite", "protocol", "budget", "model", "model_revision", "dataset_revision", "split", "layer", "strategy",
    "strategy_version", "entrant", "direction", "concept", "neighbour", "scorer", "strength", "alpha_unit",
    "opening_set", "params", "metric", "metric_version",
)  # fmt: skip

#: Columns that few suites fill: where they are null, cells and digests leave them out.
SPARSE = ("entrant",)

#: Columns that differ between two runs of the same work and therefore stay out of the digest.
VOLATILE = ("run_id", "wall_s", "device_s", "peak_bytes", "code_version", "created_at")

#: Decimals kept in the digest: recomputed D1 must agree within 1e-6.
DIGEST_DECIMALS = 6


def cell_id(row: dict[str, Any]) -> str:
    """Return the id of a row: a hash of the columns in `IDENTITY`. Null columns in `SPARSE` are left out."""
    return digest({name: row.get(name) for name in IDENTITY if row.get(name) is not None or name not in SPARSE}, 16)


def is_rank(row: Row) -> bool:
    """Return whether a row is about the ranks of a run's entrants, and so not a figure of a single cell."""
    return bool(row["metric"].startswith("rank."))


def results_digest(table: pa.Table) -> str:
    """Return a hash of all rows that does not depend on their order.

    The columns in `VOLATILE` (run id, times, memory, code version and date) are left out, and floats are rounded.
    """
    names = [name for name in RESULT_SCHEMA.names if name not in VOLATILE]
    filled_columns = {name for name in table.column_names if table[name].null_count < len(table)}
    names = [name for name in names if name not in SPARSE or name in filled_columns]
    rows = table.select(names).to_pylist()
    lines = sorted(canonical_json({name: _rounded(row[name]) for name in names}) for row in rows)
    return digest(lines, 64)


def result_table(rows: list[dict[str, Any]]) -> pa.Table:
    """Make a results table from rows, and fill the column `cell_id`.

    Raise ValueError if a value is not finite, if a row has a value and a status other than `ok`, or if a row has the
    status `ok` and no value.
    """
    complete = []
    for row in rows:
        filled = {name: row.get(name) for name in RESULT_SCHEMA.names}
        if isinstance(filled["params"], dict):
            filled["params"] = json.dumps(filled["params"], sort_keys=True)
        filled["cell_id"] = cell_id(filled)
        value, status = filled["value"], filled["status"]
        if (value is not None) != (status == Status.OK):
            raise ValueError(f"{filled['metric']} has value {value!r} with status {status!r}: a value needs status ok")
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{filled['metric']} is {value!r}: a result must be finite or null")
        complete.append(filled)
    return pa.Table.from_pylist(complete, schema=RESULT_SCHEMA)


def _rounded(value: Any) -> Any:
    """Round a float to `DIGEST_DECIMALS`, without the sign of zero. NaN and infinity become text."""
    if not isinstance(value, float):
        return value
    return round(value, DIGEST_DECIMALS) + 0.0 if math.isfinite(value) else str(value)
