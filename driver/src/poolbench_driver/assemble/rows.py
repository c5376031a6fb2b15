"""What every kind of result row is made with: where tables come from, and the columns they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from cachetools import LRUCache

from poolbench.contracts.tasks import Task
from poolbench.errors import DamagedError, ErasedError, NotFoundError
from poolbench.pooling.registry import StrategySpec
from poolbench.statuses import Status
from poolbench.storage import Artifacts
from poolbench.suites import Measure, metric_info
from poolbench_driver.run import Failure

Row = dict[str, Any]

#: Tables kept in memory while rows are made: enough for one concept's strategies.
RECENT_TABLES = 128


@dataclass(frozen=True)
class Source:
    """Where rows come from: committed artifacts, and the failures that explain what is missing.

    Damaged artifacts are collected in `damaged`; until they are made again they count as missing.
    """

    artifacts: Artifacts
    failures: Mapping[str, Failure]
    producers: Mapping[str, Task]
    damaged: dict[str, DamagedError] = field(default_factory=dict)
    recent: LRUCache[str, pa.Table] = field(default_factory=lambda: LRUCache(RECENT_TABLES))

    def table(self, key: str) -> pa.Table | Failure:
        """Return the table under a key, or why there is none. D2, D3 and curves share tables: keep the last few."""
        try:
            if key not in self.recent:
                self.recent[key] = self._read(key)
            return self.recent[key]
        except NotFoundError:
            task = self.producers.get(key)
            reason = f"artifact {key} is missing"
            unknown = Failure(task.task_id if task else "", task.kind if task else "", Status.FAILED, reason)
            return self.failures.get(unknown.task_id, unknown)
        except DamagedError as error:
            self.damaged[key] = error
            return Failure("", "", Status.FAILED, str(error))

    def _read(self, key: str) -> pa.Table:
        try:
            return self.artifacts.read_table(key)
        except ErasedError:  # rows are made from scores and receipts, never from texts
            return self.artifacts.read_receipts(key)

    def timings(self, key: str) -> Row:
        """The cost columns of a row, from the manifest of the artifact it comes from."""
        try:
            producer = self.artifacts.manifest(key).producer
        except NotFoundError:
            return {}
        except DamagedError as error:
            self.damaged[key] = error
            return {}
        return {name: producer.get(name) for name in ("wall_s", "device_s", "peak_bytes")}


def strategy_columns(spec: StrategySpec) -> Row:
    """The columns that name a strategy."""
    return {"strategy": spec.id, "strategy_version": spec.version}


def missing(metric: str, failure: Failure) -> Row:
    """Return the null row that a failure leaves."""
    return Measure.failed(metric, failure.error).to_row()


def with_metric(measure: Row) -> Row:
    """A MEASURES row with its metric's version and direction of goodness."""
    info = metric_info(measure["metric"])
    return {**measure, "metric_version": info.version, "higher_is_better": info.higher_is_better}
