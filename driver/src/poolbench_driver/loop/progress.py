"""Progress of a run for people (rich, plain), for programs (json), and in the run's state file."""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from poolbench.contracts.tasks import Task
from poolbench.errors import ConfigError
from poolbench.statuses import RunState
from poolbench.steps import label_of
from poolbench.telemetry.logs import as_json

PLAIN_INTERVAL_S = 5.0


class Display(Protocol):
    """Receive the events of the loop, and show some of them."""

    def start(self, totals: Counter[str]) -> None:
        """Take the number of tasks by kind, in the order of the plan; a run that is planned again starts again."""

    def done(self, task: Task, *, reused: bool = False) -> None:
        """Take a task whose outputs are all committed."""

    def failed(self, task_id: str, kind: str, reason: str) -> None:
        """Take a failed task."""

    def note(self, message: str) -> None:
        """Show a message."""

    def tick(self, in_flight: Mapping[str, Task]) -> None:
        """Refresh the display, about twice a second."""

    def close(self) -> None:
        """End the display at the end of the run."""


class _Counting:
    """Counts by kind, shared by the displays."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self.reused = 0
        self.failures = 0
        self.started_s = time.monotonic()
        self.sent_s: dict[str, float] = {}
        self.ended_s: dict[str, float] = {}

    def start(self, totals: Counter[str]) -> None:
        self.totals = totals
        self.finished.clear()
        self.reused = self.failures = 0

    def done(self, task: Task, *, reused: bool = False) -> None:
        self.finished[task.kind] += 1
        self.reused += reused
        if not reused:
            self.ended_s[task.kind] = self.elapsed_s

    def failed(self, task_id: str, kind: str, reason: str) -> None:
        self.finished[kind] += 1
        self.failures += 1
        self.ended_s[kind] = self.elapsed_s

    def note(self, message: str) -> None:
        """Show nothing; subclasses may."""

    def tick(self, in_flight: Mapping[str, Task]) -> None:
        for task in in_flight.values():
            self.sent_s.setdefault(task.kind, self.elapsed_s)

    def close(self) -> None:
        """Release nothing; subclasses may."""

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since the display was opened."""
        return time.monotonic() - self.started_s

    def times(self) -> dict[str, tuple[float, float]]:
        """Return, by kind of task, when the first task was sent and when the last one ended, in seconds."""
        return {kind: (self.sent_s.get(kind, end), end) for kind, end in self.ended_s.items()}

    def times_lines(self) -> list[str]:
        """Return a line per stage with its start and end, sorted by end; stages overlap."""
        spans = sorted(self.times().items(), key=lambda span: span[1][1])
        head = [f"time: {self.elapsed_s:.0f} s; stages overlap, from the first task sent to the last one done:"]
        lines = [f"  {label_of(kind):<24} {sent:5.0f} s to {end:5.0f} s" for kind, (sent, end) in spans]
        return head + lines if lines else []


class RichDisplay(_Counting):
    """One bar per stage."""

    def __init__(self) -> None:
        super().__init__()
        columns = [
            TextColumn("{task.description:<20}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        ]
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._bars: dict[str, TaskID] = {}

    def start(self, totals: Counter[str]) -> None:
        super().start(totals)
        for bar in self._bars.values():
            self._progress.remove_task(bar)
        self._bars.clear()
        for kind, total in totals.items():
            self._bars[kind] = self._progress.add_task(label_of(kind), total=total)
        self._progress.start()

    def done(self, task: Task, *, reused: bool = False) -> None:
        super().done(task, reused=reused)
        self._advance(task.kind)

    def failed(self, task_id: str, kind: str, reason: str) -> None:
        super().failed(task_id, kind, reason)
        self.note(f"failed {kind} {task_id}: {reason}", style="red")
        self._advance(kind)

    def note(self, message: str, style: str | None = None) -> None:
        # A message may quote anything: square brackets in it are not markup.
        self._progress.console.print(message, style=style, highlight=False, markup=False)

    def close(self) -> None:
        self._progress.stop()
        for line in self.times_lines():
            self.note(line)

    def _advance(self, kind: str) -> None:
        if kind in self._bars:
            self._progress.advance(self._bars[kind])


class PlainDisplay(_Counting):
    """A line every few seconds, for logs."""

    def __init__(self) -> None:
        super().__init__()
        self._last_s = 0.0

    def failed(self, task_id: str, kind: str, reason: str) -> None:
        super().failed(task_id, kind, reason)
        self.note(f"failed {kind} {task_id}: {reason}")

    def note(self, message: str) -> None:
        print(f"{self.elapsed_s:7.1f}s  {message}", file=sys.stderr, flush=True)

    def tick(self, in_flight: Mapping[str, Task]) -> None:
        super().tick(in_flight)
        if time.monotonic() - self._last_s < PLAIN_INTERVAL_S:
            return
        self._last_s = time.monotonic()
        busy = Counter(task.kind for task in in_flight.values())
        open_kinds = [k for k in self.totals if self.finished[k] < self.totals[k]]
        parts = [f"{label_of(k)} {self.finished[k]}/{self.totals[k]}{'*' if busy[k] else ''}" for k in open_kinds]
        self.note(f"{sum(self.finished.values())}/{sum(self.totals.values())} tasks; " + ", ".join(parts))

    def close(self) -> None:
        for line in self.times_lines():
            self.note(line)


class JsonDisplay(_Counting):
    """One JSON object per line on standard error."""

    def start(self, totals: Counter[str]) -> None:
        super().start(totals)
        self._emit("start", totals=dict(totals))

    def done(self, task: Task, *, reused: bool = False) -> None:
        super().done(task, reused=reused)
        self._emit("done", task=task.task_id, kind=task.kind, reused=reused)

    def failed(self, task_id: str, kind: str, reason: str) -> None:
        super().failed(task_id, kind, reason)
        self._emit("failed", task=task_id, kind=kind, reason=reason)

    def note(self, message: str) -> None:
        self._emit("note", message=message)

    def close(self) -> None:
        self._emit("times", stages={kind: [round(time_s, 2) for time_s in span] for kind, span in self.times().items()})

    def _emit(self, event: str, **fields: object) -> None:
        print(
            json.dumps({"event": event, "elapsed_s": round(self.elapsed_s, 2), **fields}), file=sys.stderr, flush=True
        )


def open_display(name: str | None) -> Display:
    """Return the display called `name`; for None, json if logs are, else rich on a terminal and plain elsewhere."""
    display = name or ("json" if as_json() else "rich" if sys.stderr.isatty() else "plain")
    displays = {"rich": RichDisplay, "plain": PlainDisplay, "json": JsonDisplay, "none": _Counting}
    if display not in displays:
        raise ConfigError(f"unknown display {display!r}; use {', '.join(displays)}")
    return displays[display]()


class Recording:
    """Forward the events of the loop to a display, and the run's state and counts to `RunFolder.write_state`."""

    def __init__(self, display: Display, write_state: Callable[..., None], num_tasks: int) -> None:
        self._display, self._write_state, self._total = display, write_state, num_tasks
        self._done: set[str] = set()  # a task whose output was damaged is done twice
        self._failed = 0
        self._written: tuple[int, int] | None = None
        self.note, self.start, self.close = display.note, display.start, display.close

    def done(self, task: Task, *, reused: bool = False) -> None:
        self._done.add(task.task_id)
        self._display.done(task, reused=reused)

    def failed(self, task_id: str, kind: str, reason: str) -> None:
        self._failed += 1
        self._display.failed(task_id, kind, reason)

    def tick(self, in_flight: Mapping[str, Task]) -> None:
        if self._written != (len(self._done), self._failed):
            self._written = (len(self._done), self._failed)
            counts = {"tasks": self._total, "tasks_done": len(self._done), "failures": self._failed}
            self._write_state(RunState.RUNNING, **counts)
        self._display.tick(in_flight)
