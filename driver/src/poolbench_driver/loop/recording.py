"""A display that also updates the run's state file, which `status` and `watch` read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from poolbench.contracts.tasks import Task
from poolbench.statuses import RunState
from poolbench_driver.loop.progress import Display


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
