"""Read the result rows of a run's folder."""

from __future__ import annotations

from typing import Any

from poolbench.errors import InputError
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.records import RunFolder


def read_results(folder: RunFolder) -> list[dict[str, Any]]:
    """Return a run's result rows; raise IntegrityError if the file is damaged, InputError if it has no result rows.

    Whatever the columns of its suite are, `strategy` names what is compared, and `concept` what it is averaged over.
    """
    rows = folder.read_table("results").to_pylist()
    if not rows:
        raise InputError(f"{folder.id}/results.parquet has no rows: nothing was measured")
    board = SUITES.get(rows[0]["suite"]).board
    return [{**row, "strategy": row[board.entrant], "concept": row[board.block]} for row in rows]
