"""Read the result rows of a run's folder."""

from __future__ import annotations

from typing import Any

from poolbench.contracts.results import RESULT_SCHEMA
from poolbench.errors import InputError
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.records import RunFolder


def read_results(folder: RunFolder) -> list[dict[str, Any]]:
    """Return a run's result rows; raise IntegrityError if the file is damaged, InputError if it has no result rows.

    Whatever the columns of its suite are, `strategy` names what is compared, and `concept` what it is averaged over.
    """
    where = f"{folder.id}/results.parquet"
    table = folder.read_table("results")
    if lacking := [name for name in RESULT_SCHEMA.names if name not in table.column_names]:
        raise InputError(f"{where} lacks the columns {', '.join(lacking[:5])}; another version wrote it")
    if table.num_rows == 0:
        raise InputError(f"{where} has no rows: nothing was measured")
    rows = table.to_pylist()
    board = SUITES.get(rows[0]["suite"]).board
    return [{**row, "strategy": row[board.entrant], "concept": row[board.block]} for row in rows]
