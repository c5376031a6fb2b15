"""Folders of runs as a driver leaves them, of tables that a test has made."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from poolbench.contracts import Row
from poolbench.statuses import RunState
from poolbench_driver.assemble import assemble
from poolbench_driver.config import RunConfig
from poolbench_driver.models import ModelInfo
from poolbench_driver.records import Run
from poolbench_driver.records.folder import create_run, write_failures, write_state, write_table
from poolbench_driver.stages.failure import Failure


class MadeRun(NamedTuple):
    """A finished run of a configuration and of tables in memory, as a suite reads it."""

    id: str
    config: RunConfig
    tables: Mapping[str, pa.Table]
    model: ModelInfo | None = None

    def rows(self, name: str, /, **values: Any) -> list[Row]:
        """Return the rows of a table that have these values, as those of a run's folder."""
        return Run.rows(self, name, **values)  # type: ignore[arg-type]


def written(
    folder: Run, tables: Mapping[str, pa.Table], failures: Sequence[Failure] = (), state: RunState | None = None
) -> Run:
    """Write tables, failures and, if one is given, the state of a run."""
    for name, table in tables.items():
        write_table(folder, name, table)
    write_failures(folder, list(failures))
    if state is not None:
        write_state(folder, state)
    return folder


def assembled(made: Any, output: Path, state: RunState | None = RunState.DONE) -> Run:
    """Return the folder of a run below `output`, with the tables that the artifacts of `made.plan` give."""
    folder = create_run(output, made.plan.config)
    return written(folder, assemble(made.plan, made.artifacts, {}, folder.id), state=state)


def rows_of(tables: Mapping[str, pa.Table], table: str = "results", **wanted: Any) -> list[Row]:
    """Return the rows of a table that have these values."""
    return [row for row in tables[table].to_pylist() if all(row[name] == value for name, value in wanted.items())]
