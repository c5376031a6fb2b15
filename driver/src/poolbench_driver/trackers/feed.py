"""Feed a run to its trackers, each in a thread of its own: neither a slow nor a failing one changes the run."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from statistics import fmean
from typing import TYPE_CHECKING, Any, Self

from poolbench.contracts import Row
from poolbench.statuses import RunState
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import BoardSpec
from poolbench_driver.pages.plain import is_rank
from poolbench_driver.records import UNFINISHED, Run
from poolbench_driver.stages.stage import Plan
from poolbench_driver.trackers.tracker import TrackerKind

if TYPE_CHECKING:
    import pyarrow as pa

#: Least time between two reports of progress, and how long the end of a run waits for its trackers together.
PROGRESS_S, END_S = 10.0, 60.0
_MAX_SHOWN = 300


class Feed:
    """Context manager that passes the events of one run on to its trackers. Trackers close at the end of the block."""

    def __init__(self, kinds: Sequence[TrackerKind], plan: Plan, run: Run, note: Callable[[str], None]) -> None:
        """Set the run to follow. `note` receives a line for each tracker that fails."""
        self._threads = [_Thread(kind, note) for kind in kinds]
        self._config, self._folder = plan.config, run
        self._note, self._sent_s = note, -math.inf
        self._state = RunState.STARTING
        self._report: Path | None = None

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        self._send("started", self._folder, self._config.model_dump(mode="json"))
        return self

    def take_state(self, state: RunState, fields: Mapping[str, Any]) -> None:
        """Report the numbers of tasks from a state that the run has written.

        While the run works, report at most once in `PROGRESS_S` seconds.
        """
        self._state = state
        due = time.monotonic() - self._sent_s >= PROGRESS_S
        if "tasks_done" in fields and (due or state != RunState.RUNNING):
            self._sent_s = time.monotonic()
            for thread in self._threads:
                thread.progress = fields["tasks_done"], fields["failures"], fields["tasks"]
            self._send("progress")

    def take_outcome(self, tables: Mapping[str, pa.Table], report: Path | None) -> None:
        """Report the figures of a run that has ended. If the run has no tables, report nothing."""
        self._report = report
        if self._threads and tables:
            self._send("figures", figures(tables["results"].to_pylist(), SUITES.get(self._config.suite).board))

    def __exit__(self, *_: object) -> None:
        """Close the trackers, and wait at most `END_S` seconds until each of them has handled all calls."""
        self._send("finished", RunState.STOPPED if self._state in UNFINISHED else self._state, self._report)
        end_s = time.monotonic() + END_S
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))
            if thread.is_alive():
                self._note(f"tracker {thread.kind.id} has not taken the whole run within {END_S:.0f} s")

    def _send(self, call: str, *args: Any) -> None:
        for thread in self._threads:
            thread.calls.put((call, args))


class _Thread(threading.Thread):
    """Passes calls on to one tracker. The first failure is noted once. A later call may succeed again."""

    def __init__(self, kind: TrackerKind, note: Callable[[str], None]) -> None:
        super().__init__(name=f"tracker-{kind.id}", daemon=True)
        self.kind, self._note, self._has_failed = kind, note, False
        self.calls: SimpleQueue[tuple[str, tuple[Any, ...]]] = SimpleQueue()
        self.progress: tuple[int, ...] = ()

    def run(self) -> None:
        call, args = self.calls.get()
        try:
            tracker = self.kind.open()
            getattr(tracker, call)(*args)
        except BaseException as error:  # code of other packages may raise anything
            return self._failed(error, "does not follow this run")
        while call != "finished":
            call, args = self.calls.get()
            if call == "progress":  # the newest replaces those that a slow tracker has not taken
                args, self.progress = self.progress, ()
                if not args:
                    continue
            try:
                getattr(tracker, call)(*args)
            except BaseException as error:
                self._failed(error, f"has not taken everything of this run ({call})")

    def _failed(self, error: BaseException, what: str) -> None:
        if not self._has_failed:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_SHOWN]
            is_missing = isinstance(error, ModuleNotFoundError) and self.kind.package
            hint = f"; pip install {self.kind.package}" if is_missing else ""
            self._note(f"tracker {self.kind.id} {what}: {reason}{hint}")
        self._has_failed = True


def figures(rows: Sequence[Row], board: BoardSpec) -> list[Row]:
    """Return the mean and the mean rank of each entrant on each ranked metric, as rows for `Tracker.figures`."""
    entries: list[Row] = []
    for metric in board.ranked:
        ranks = {row[board.entrant]: row["value"] for row in rows if is_rank(row, metric)}
        values = defaultdict[str, list[float | None]](list)
        for row in rows:
            if row["metric"] == metric and row[board.entrant] is not None and not board.is_apart(row):
                values[row[board.entrant]].append(row["value"])
        for entrant, cells in values.items():
            present = [value for value in cells if value is not None]
            mean = fmean(present) if len(present) == len(cells) else None
            entry = {"metric": metric, "entrant": entrant, "value": mean, "rank": ranks.get(entrant)}
            entries.append({**entry, "num_cells": len(cells), "num_null": len(cells) - len(present)})
    return entries
