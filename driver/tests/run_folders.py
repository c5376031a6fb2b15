"""Folders of runs as a driver leaves them, of tables that a test has made."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from poolbench.contracts import Row
from poolbench.statuses import RunState
from poolbench_driver.assemble import assemble
from poolbench_driver.records import RunFolder
from poolbench_driver.stages.failure import Failure


def written(
    folder: RunFolder, tables: Mapping[str, pa.Table], failures: Sequence[Failure] = (), state: RunState | None = None
) -> RunFolder:
    """Write tables, failures and, if one is given, the state of a run."""
    for name, table in tables.items():
        folder.write_table(name, table)
    folder.write_failures(list(failures))
    if state is not None:
        folder.write_state(state)
    return folder


def assembled(made: Any, output: Path, state: RunState | None = RunState.DONE) -> RunFolder:
    """Return the folder of a run below `output`, with the tables that the artifacts of `made.plan` give."""
    folder = RunFolder.create(output, made.plan.config)
    return written(folder, assemble(made.plan, made.artifacts, {}, folder.id), state=state)


def rows_of(tables: Mapping[str, pa.Table], table: str = "results", **wanted: Any) -> list[Row]:
    """Return the rows of a table that have these values."""
    return [row for row in tables[table].to_pylist() if all(row[name] == value for name, value in wanted.items())]
