"""How far a run is, as its driver publishes it beside the state, and the first figures of its finished probes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import fmean
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, computed_field

from poolbench.errors import PoolbenchError
from poolbench.queue.messages import shown_text
from poolbench.storage import Artifacts
from poolbench_driver.waiting import left_s, longest_s

#: Entries of each list that a driver publishes.
MOST = 20
#: Most characters of a text that others published, and most entries of a list.
MAX_SHOWN = 500
#: Tables that are read at once for the first figures and in all, and figures by entrant and layer that are kept.
_READ_AT_ONCE, _MAX_READ, _MAX_ENTRANTS = 20, 5000, 2000
PublishedText = Annotated[str, AfterValidator(lambda text: shown_text(text[:MAX_SHOWN]))]
_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Seconds = Annotated[float, Field(ge=0, lt=1e12, allow_inf_nan=False)]


class Published(BaseModel):
    """What a driver published. Others may write into a store too, so all of it is checked."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class StageProgress(Published):
    """The tasks of one kind; times are seconds since the driver began."""

    kind: PublishedText
    label: PublishedText
    tasks: _Count
    done: _Count = 0
    failed: _Count = 0
    reused: _Count = 0  # of those done: made by an earlier run
    first_sent_s: _Seconds | None = None
    last_ended_s: _Seconds | None = None
    worked_s: _Seconds | None = None  # how long tasks of the kind were in flight, until the last one ended

    @property
    def ended(self) -> int:
        """Return the number of tasks that ended in this run."""
        return self.done + self.failed - self.reused

    @computed_field  # type: ignore[prop-decorator]
    @property
    def per_min(self) -> float | None:
        """Tasks that ended per minute in which some were in flight; None before the first one ended."""
        return None if not self.ended or self.worked_s is None else 60 * self.ended / max(self.worked_s, 1.0)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def left_s(self) -> float | None:
        """Seconds that the remaining tasks take at this rate; None without a rate."""
        left = self.tasks - self.done - self.failed
        return None if left and self.per_min is None else left_s(left, self.ended, self.worked_s or 0.0)


class SentTask(Published):
    """A task that waits in its queue or is in work."""

    task: PublishedText
    label: PublishedText
    sent_s: _Seconds  # when it was first seen in flight


class FailedTask(Published):
    """A task that failed."""

    task: PublishedText
    label: PublishedText
    reason: PublishedText


class FirstFigure(Published):
    """The mean of a figure over the cells that have one so far."""

    metric: PublishedText
    entrant: PublishedText
    layer: int
    value: Annotated[float, Field(allow_inf_nan=False)]
    num_cells: _Count


class Progress(Published):
    """The progress of a run."""

    elapsed_s: _Seconds = 0.0
    stages: Annotated[tuple[StageProgress, ...], Field(max_length=200)] = ()
    num_sent: _Count = 0
    sent: Annotated[tuple[SentTask, ...], Field(max_length=MOST)] = ()  # the longest first
    notes: Annotated[tuple[PublishedText, ...], Field(max_length=MOST)] = ()  # the last ones
    failures: Annotated[tuple[FailedTask, ...], Field(max_length=MOST)] = ()  # the last ones
    figures: Annotated[tuple[FirstFigure, ...], Field(max_length=MOST)] = ()  # by metric, the best first

    @computed_field  # type: ignore[prop-decorator]
    @property
    def left_s(self) -> float | None:
        """Seconds to the end, of the stage that takes longest; None while a stage has no rate."""
        return longest_s(stage.left_s for stage in self.stages)


class FirstFigures:
    """Means of the figures of finished probes, before the run's tables are assembled.

    Args:
        artifacts: The store of the run.
        metrics: The metrics that the suite ranks by.
    """

    def __init__(self, artifacts: Artifacts, metrics: Sequence[str]) -> None:
        self._artifacts, self.metrics = artifacts, metrics
        self._unread: deque[tuple[str, int, str]] = deque()  # entrant, layer and key of the table of its measures
        self._num_read = 0
        self._values: dict[tuple[str, str, int], list[float]] = {}

    def add(self, tables: Iterable[tuple[str, int, str]]) -> None:
        """Add committed tables to the tables to read, each with its entrant and layer."""
        self._unread.extend(tables)  # another thread reads them

    def read(self) -> list[dict[str, Any]]:
        """Read some of the tables. Return the best means of each metric in turn, with the fields of `FirstFigure`."""
        batch_size = min(len(self._unread), _READ_AT_ONCE, _MAX_READ - self._num_read)
        self._num_read += batch_size
        for _ in range(batch_size):
            entrant, layer, key = self._unread.popleft()
            try:
                measures = self._artifacts.read_table(key).select(["metric", "value"]).to_pylist()
            except (PoolbenchError, KeyError):  # the run itself reads it again, and says what is wrong
                continue
            for row in measures:
                cell = (row["metric"], entrant, layer)
                is_new = cell not in self._values and len(self._values) >= _MAX_ENTRANTS
                if row["metric"] in self.metrics and row["value"] is not None and not is_new:
                    self._values.setdefault(cell, []).append(row["value"])
        means: list[dict[str, Any]] = [
            {"metric": metric, "entrant": entrant, "layer": layer, "value": fmean(values), "num_cells": len(values)}
            for (metric, entrant, layer), values in self._values.items()
        ]
        best_first = sorted(means, key=lambda mean: (self.metrics.index(mean["metric"]), -mean["value"]))
        by_metric = [list(group) for _, group in groupby(best_first, key=lambda mean: mean["metric"])]
        return [mean for group in by_metric for mean in group[: MOST // len(by_metric)]]
