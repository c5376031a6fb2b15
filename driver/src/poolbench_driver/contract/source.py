"""Common parts of result rows: the source of tables, shared columns, and tables that others recorded."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from cachetools import LRUCache

from poolbench.contracts import Row
from poolbench.contracts.keys import digest
from poolbench.contracts.measures import Measure
from poolbench.contracts.tasks import Task
from poolbench.errors import DamagedError, InputError, NotFoundError, shown
from poolbench.pooling.registry import StrategySpec
from poolbench.statuses import Status
from poolbench.storage import Artifacts
from poolbench_corpora.reading import name_in, records
from poolbench_driver.stages.failure import Failure

#: Cells that stand for a missing number, in lower case.
MISSING = frozenset(("", "nan", "na", "n/a", "none", "null"))


@dataclass(frozen=True)
class TableLine:
    """A line of a table. Its cells by column have no surrounding spaces, and are "" if missing."""

    where: str  # file and line, as errors name it
    cells: dict[str, str]

    def number(self, column: str) -> float:
        """Return the number in a column, NaN if it is missing. Raise InputError for anything else."""
        cell = self.cells[column]
        if cell.lower() in MISSING:
            return math.nan
        try:
            value = float(cell)
        except ValueError:
            value = math.inf
        if math.isinf(value):
            raise InputError(
                f"{self.where}, column {shown(column)}: {shown(cell)} is not a number; leave it empty if missing"
            )
        return value


def read_csv(file: Path, required: Iterable[str] = ()) -> tuple[list[str], list[TableLine]]:
    """Return the columns of a table, and its rows. Blank rows are left out.

    Args:
        file: A CSV file, or another table. Columns may be in any order.
        required: Columns that the table must have.

    Raises:
        InputError: With file and line: the table cannot be read, is empty, or lacks a column.
    """
    head: list[str] = []
    lines: list[TableLine] = []
    for where, values in records(file):
        if not lines:
            head = list(map(str, values))
            if lacking := [name for name in required if name not in head]:
                columns = ", ".join(map(shown, head[:8])) or "none"
                raise InputError(
                    f"{file}, line 1: no column {', '.join(map(shown, lacking))}; the first columns are {columns}"
                )
        cells = {name: name_in(values, name, where) for name in head}
        if any(cells.values()):
            lines.append(TableLine(where, cells))
    if not lines:
        raise InputError(f"{file} is empty: all its lines are blank")
    return head, lines


#: Tables kept in memory while rows are made: enough for one concept's strategies.
RECENT_TABLES = 128


@dataclass(frozen=True)
class RowSource:
    """The source of rows: committed artifacts and failures. Damaged artifacts are collected and count as missing."""

    artifacts: Artifacts
    failures: Mapping[str, Failure]
    producers: Mapping[str, Task]
    damaged: dict[str, DamagedError] = field(default_factory=dict)
    recent: LRUCache[str, pa.Table] = field(default_factory=lambda: LRUCache(RECENT_TABLES))

    def table(self, key: str) -> pa.Table | Failure:
        """Return the table under a key, or the failure. Recent tables are cached for D2, D3 and curves."""
        try:
            if key not in self.recent:
                self.recent[key] = self.artifacts.read_table(key)
            return self.recent[key]
        except NotFoundError:
            task = self.producers.get(key)
            reason = f"artifact {key} is missing"
            unknown = Failure(task.task_id if task else "", task.kind if task else "", Status.FAILED, reason)
            return self.failures.get(unknown.task_id, unknown)
        except DamagedError as error:
            self.damaged[key] = error
            return Failure("", "", Status.FAILED, str(error))

    def required(self, key: str) -> pa.Table:
        """Return the table under a key. Raise CellError with the reason if there is none."""
        table = self.table(key)
        if isinstance(table, Failure):
            raise table.error
        return table

    def rows(self, key: str) -> list[Row]:
        """Return the rows of the table under a key, or an empty list if there is no table."""
        table = self.table(key)
        return [] if isinstance(table, Failure) else table.to_pylist()

    def timings(self, key: str) -> Row:
        """Return the cost columns of a row, from the manifest of its artifact."""
        try:
            producer = self.artifacts.manifest(key).producer
        except NotFoundError:
            return {}
        except DamagedError as error:
            self.damaged[key] = error
            return {}
        return {name: producer.get(name) for name in ("wall_s", "device_s", "peak_bytes")}


def strategy_columns(spec: StrategySpec) -> Row:
    """Return the columns that name a strategy."""
    return {"strategy": spec.id, "strategy_version": spec.version}


def missing(metric: str, failure: Failure) -> Row:
    """Return the null row that a failure leaves."""
    return Measure.failed(metric, failure.error).to_row()


def measured(
    metric: str,
    key: str,
    identity: Row,
    source: RowSource,
    *,
    split: str | None,
    on_test: Collection[str] = (),
) -> Iterable[Row]:
    """Yield the measures of one cell, or a null `metric` if the cell failed.

    Args:
        split: Split of the figures, or None if they are not of a single split.
        on_test: Metrics whose figures are of the test split instead.
    """
    table = source.table(key)
    if isinstance(table, Failure):
        measures, timings = [missing(metric, table)], Row()
    else:
        measures, timings = table.to_pylist(), source.timings(key)
    for measure in measures:
        # A cell keeps its identity when it fails, and the split is a part of it.
        yield {**timings, **measure, **identity, "split": "test" if measure["metric"] in on_test else split}


def opaque(passages_key: str, passage_id: str) -> str:
    """Return a hash in place of a passage's id, because ids of real corpora name the document. All tables share it."""
    return digest([passages_key, passage_id], 16)
