"""Progress of a run for people (rich, plain), for programs (json), and in the run's state file."""

import json
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from poolbench.contracts.tasks import Task
from poolbench.errors import ConfigError
from poolbench.statuses import RunState
from poolbench.steps import label_of
from poolbench.steps.prober import MEASURES, PROBE, TASK
from poolbench.telemetry.logs import as_json
from poolbench_driver.waiting import about, left_s, longest_s

#: Least time between two lines on how far a run is.
PLAIN_INTERVAL_S = 5.0
#: Characters of such a line after the time.
PLAIN_CHARS = 90
#: Time between two looks at the progress that is published, and entries of each of its lists.
PUBLISH_INTERVAL_S, NUM_SHOWN = 2.0, 20
#: Takes entrant, layer and key of tables of measures.
TakeMeasures = Callable[[Iterable[tuple[str, int, str]]], None]


class Display:
    """Receive the events of the loop and count them by kind. Subclasses show some of them."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()  # with those that failed, and those that an earlier run made
        self.reused, self.failures = Counter[str](), Counter[str]()
        self.started_s = time.monotonic()
        self.sent_s: dict[str, float] = {}
        self.ended_s: dict[str, float] = {}
        self.worked_s: dict[str, float] = {}  # how long tasks were in flight until the last one ended
        self._in_flight_s = defaultdict[str, float](float)  # how long tasks were in flight until the last tick
        self._ticked_s, self._kinds_in_flight = 0.0, set[str]()

    def start(self, totals: Counter[str]) -> None:
        """Take the number of tasks by kind, in the order of the plan; a run that is planned again starts again."""
        self.totals = totals
        for counts in (self.finished, self.reused, self.failures):
            counts.clear()

    def done(self, task: Task, *, reused: bool = False) -> None:
        """Take a task whose outputs are all committed."""
        self.finished[task.kind] += 1
        self.reused[task.kind] += reused
        if not reused:
            self._ended(task.kind)

    def failed(self, task_id: str, kind: str, reason: str) -> None:
        """Take a failed task."""
        self.finished[kind] += 1
        self.failures[kind] += 1
        self._ended(kind)

    def note(self, message: str) -> None:
        """Take a message."""

    def tick(self, in_flight: Mapping[str, Task]) -> None:
        """Take the tasks in flight, about twice a second."""
        now_s = self.elapsed_s
        for kind in self._kinds_in_flight:
            self._in_flight_s[kind] += now_s - self._ticked_s
        self._ticked_s, self._kinds_in_flight = now_s, {task.kind for task in in_flight.values()}
        for kind in self._kinds_in_flight:
            self.sent_s.setdefault(kind, now_s)

    def close(self) -> None:
        """End the display at the end of the run."""

    def _ended(self, kind: str) -> None:
        """Note that a task ended. Time in which no task of the kind could be sent does not count as work."""
        now_s = self.ended_s[kind] = self.elapsed_s
        since_tick_s = now_s - self._ticked_s if kind in self._kinds_in_flight else 0.0
        self.worked_s[kind] = self._in_flight_s[kind] + since_tick_s

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since the display was opened."""
        return time.monotonic() - self.started_s

    def left_s(self, kind: str) -> float | None:
        """Return the seconds that the remaining tasks of a kind will take, or None before a task has ended."""
        left, ended = self.totals[kind] - self.finished[kind], self.finished[kind] - self.reused[kind]
        return left_s(left, ended, self.worked_s.get(kind, 0.0))

    def times(self) -> dict[str, tuple[float, float]]:
        """Return, by kind of task, when the first task was sent and when the last one ended, in seconds."""
        return {kind: (self.sent_s.get(kind, end), end) for kind, end in self.ended_s.items()}

    def times_lines(self) -> list[str]:
        """Return one line per stage with its start and end, sorted by end. Stages may overlap."""
        spans = sorted(self.times().items(), key=lambda span: span[1][1])
        head = [f"time: {self.elapsed_s:.0f} s; stages overlap, from the first task sent to the last one done:"]
        lines = [f"  {label_of(kind):<24} {sent:5.0f} s to {end:5.0f} s" for kind, (sent, end) in spans]
        return head + lines if lines else []


class RichDisplay(Display):
    """One bar per stage."""

    def __init__(self) -> None:
        super().__init__()
        columns = [
            TextColumn("{task.description:<20}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        ]
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._bars: dict[str, TaskID] = {}

    def start(self, totals: Counter[str]) -> None:
        super().start(totals)
        for bar in self._bars.values():
            self._progress.remove_task(bar)
        self._bars.clear()
        for kind, total in totals.items():
            self._bars[kind] = self._progress.add_task(label_of(kind), total=total, left="")
        self._progress.start()

    def done(self, task: Task, *, reused: bool = False) -> None:
        super().done(task, reused=reused)
        self._advance(task.kind)

    def failed(self, task_id: str, kind: str, reason: str) -> None:
        super().failed(task_id, kind, reason)
        self.note(f"failed {kind} {task_id}: {reason}", style="red")
        self._advance(kind)

    def tick(self, in_flight: Mapping[str, Task]) -> None:
        super().tick(in_flight)
        for kind, bar in self._bars.items():
            self._progress.update(bar, left=_said(self.left_s(kind)))

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


class PlainDisplay(Display):
    """A line on the stages in work when something has changed, every few seconds at most, for logs."""

    def __init__(self) -> None:
        super().__init__()
        self._last_s, self._shown = 0.0, ("", list[str]())

    def failed(self, task_id: str, kind: str, reason: str) -> None:
        super().failed(task_id, kind, reason)
        self.note(f"failed {kind} {task_id}: {reason}")

    def note(self, message: str) -> None:
        _write_line(f"{self.elapsed_s:7.1f}s  {message}")

    def tick(self, in_flight: Mapping[str, Task]) -> None:
        super().tick(in_flight)
        if time.monotonic() - self._last_s < PLAIN_INTERVAL_S:
            return
        in_work = {task.kind for task in in_flight.values()}
        parts = [f"{label_of(k)} {self.finished[k]}/{self.totals[k]}" for k in self.totals if k in in_work]
        progress = f"{self.finished.total()}/{self.totals.total()} tasks"
        if (progress, parts) != self._shown:
            self._last_s, self._shown = time.monotonic(), (progress, parts)
            open_kinds = [kind for kind, total in self.totals.items() if self.finished[kind] < total]
            left = _said(longest_s(map(self.left_s, open_kinds)))
            head = f"{progress}, {left}: " if left else f"{progress}: "
            self.note(head + _some_of(parts, PLAIN_CHARS - len(head)))

    def close(self) -> None:
        for line in self.times_lines():
            self.note(line)


def _some_of(parts: list[str], num_chars: int) -> str:
    """Return as many of the parts as fit, at least one, and the number of parts left out."""
    for num_shown in range(len(parts), 0, -1):
        more = [f"{len(parts) - num_shown} more"] if num_shown < len(parts) else []
        line = ", ".join([*parts[:num_shown], *more])
        if len(line) <= num_chars:
            break
    return line if parts else "waiting"


def _write_line(line: str) -> None:
    """Write a line and its end in one call. `print` uses two calls, and another thread may write between them."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _said(seconds: float | None) -> str:
    """Return the remaining time in words, or "" if it is unknown or zero."""
    return f"{about(seconds)} left" if seconds else ""


class JsonDisplay(Display):
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
        _write_line(json.dumps({"event": event, "elapsed_s": round(self.elapsed_s, 2), **fields}))


def open_display(name: str | None) -> Display:
    """Return the display called `name`. For None: json if logs are json, else rich on a terminal, else plain.

    The Python prompt gets the plain display, because bars would be drawn over the user's input.
    """
    has_bars = sys.stderr.isatty() and not hasattr(sys, "ps1")
    display = name or ("json" if as_json() else "rich" if has_bars else "plain")
    displays = {"rich": RichDisplay, "plain": PlainDisplay, "json": JsonDisplay, "none": Display}
    if display not in displays:
        raise ConfigError(f"unknown display {display!r}; use {', '.join(displays)}")
    return displays[display]()


class RunRecord(Protocol):
    """Where the state and the progress of a run are written."""

    def write_state(self, state: RunState, **fields: Any) -> None:
        """Write the state."""

    def write_progress(self, **fields: Any) -> None:
        """Write how far the run is."""


class Recording(Display):
    """Forward the events of the loop to a display, and the run's state and progress to its record."""

    def __init__(
        self, display: Display, record: RunRecord, num_tasks: int, take_measures: TakeMeasures = lambda tables: None
    ) -> None:
        """Forward to `display` and `record`.

        Args:
            take_measures: Takes entrant, layer and key of each table of measures that a probe has made.
        """
        super().__init__()
        self._display, self._record, self._total, self._take_measures = display, record, num_tasks, take_measures
        self._done: set[str] = set()  # a task whose output was damaged is done twice
        self._num_failed = 0
        self._failures: deque[dict[str, Any]] = deque(maxlen=NUM_SHOWN)
        self._notes: deque[str] = deque(maxlen=NUM_SHOWN)
        self._sent_s: dict[str, float] = {}  # when a task was first seen in flight
        self._written: tuple[int, int] | None = None
        self._published_s = -float("inf")

    def start(self, totals: Counter[str]) -> None:
        super().start(totals)
        self._display.start(totals)

    def done(self, task: Task, *, reused: bool = False) -> None:
        super().done(task, reused=reused)
        self._done.add(task.task_id)
        if task.kind in (PROBE.kind, TASK.kind):
            self._take_measures((*cell, task.outputs[role]) for role, cell in MEASURES.among(task.outputs))
        self._display.done(task, reused=reused)

    def failed(self, task_id: str, kind: str, reason: str) -> None:
        super().failed(task_id, kind, reason)
        self._num_failed += 1
        self._failures.append({"task": task_id, "label": label_of(kind), "reason": reason})
        self._display.failed(task_id, kind, reason)

    def note(self, message: str) -> None:
        self._notes.append(message)
        self._display.note(message)

    def close(self) -> None:
        self._display.close()

    def tick(self, in_flight: Mapping[str, Task]) -> None:
        super().tick(in_flight)
        if self._written != (len(self._done), self._num_failed):
            self._written = (len(self._done), self._num_failed)
            counts = {"tasks": self._total, "tasks_done": len(self._done), "failures": self._num_failed}
            self._record.write_state(RunState.RUNNING, **counts)
        self._sent_s = {task_id: self._sent_s.get(task_id, self.elapsed_s) for task_id in in_flight}
        if self.elapsed_s - self._published_s >= PUBLISH_INTERVAL_S or not in_flight:
            self._published_s = self.elapsed_s
            self._record.write_progress(**self._progress(in_flight))
        self._display.tick(in_flight)

    def _progress(self, in_flight: Mapping[str, Task]) -> dict[str, Any]:
        """Return the progress of the run, with the fields of `records.progress.Progress`."""
        longest = sorted(self._sent_s.items(), key=lambda entry: entry[1])[:NUM_SHOWN]
        return {
            "elapsed_s": round(self.elapsed_s, 1),
            "stages": [self._stage(kind, total) for kind, total in self.totals.items()],
            "num_sent": len(in_flight),
            "sent": [
                {"task": task_id, "label": label_of(in_flight[task_id].kind), "sent_s": round(sent_s, 1)}
                for task_id, sent_s in longest
            ],
            "notes": list(self._notes),
            "failures": list(self._failures),
        }

    def _stage(self, kind: str, total: int) -> dict[str, Any]:
        failed = min(self.failures[kind], total)
        return {
            "kind": kind, "label": label_of(kind), "tasks": total, "failed": failed,
            "done": min(self.finished[kind] - self.failures[kind], total - failed),
            "reused": self.reused[kind],
            "first_sent_s": self.sent_s.get(kind), "last_ended_s": self.ended_s.get(kind),
            "worked_s": self.worked_s.get(kind),
        }  # fmt: skip
