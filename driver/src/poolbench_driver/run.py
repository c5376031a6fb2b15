"""The loop: send what is ready, wait, record. It decides nothing about science and holds no truth of its own.

Completion is what the object store says. The queue may lose or repeat messages and workers may be killed:
a task that is neither committed, nor waiting, nor leased by a live worker is sent again.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from poolbench.contracts.tasks import Task
from poolbench.errors import NotFoundError, PoolbenchError
from poolbench.queue import LeaseStore, TaskQueue
from poolbench.storage import Artifacts
from poolbench_driver.plan import Plan
from poolbench_driver.progress import Display

#: Tasks in flight per replica: one in work, one waiting, so that no replica idles between two.
IN_FLIGHT_PER_WORKER = 2
#: A task that vanished from queue and leases is sent again after this long; the gap covers hand-over.
VANISHED_S = 10.0
MAX_SENDS = 4
TICK_S = 0.4


@dataclass(frozen=True)
class Failure:
    """Why a task has no outputs."""

    task_id: str
    kind: str
    status: str
    reason: str


@dataclass
class _InFlight:
    task: Task
    sends: int = 1
    last_seen_s: float = field(default_factory=time.monotonic)


class TooManyFailuresError(PoolbenchError):
    """The run was stopped by --max-failures."""


class RunLoop:
    """Brings a plan's tasks to completion or failure."""

    def __init__(
        self,
        plan: Plan,
        artifacts: Artifacts,
        queue: TaskQueue,
        leases: LeaseStore,
        display: Display,
        *,
        workers: dict[str, int],
        max_failures: int | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        run_id: str = "",
    ) -> None:
        self.plan, self.artifacts, self.queue, self.leases = plan, artifacts, queue, leases
        self.display, self.workers, self.max_failures = display, workers, max_failures
        self.cancelled, self.run_id = cancelled, run_id
        self.committed: set[str] = set()
        self.pending: dict[str, Task] = {}
        self.in_flight: dict[str, _InFlight] = {}
        self.failures: dict[str, Failure] = {}
        self.resent = 0

    def run(self) -> dict[str, Failure]:
        """Runs to the end; returns the failures by task id.

        Raises:
            TooManyFailuresError: When more than ``max_failures`` tasks failed.
            KeyboardInterrupt: Passed on; tasks in work finish by themselves.
        """
        self.committed = committed_keys(self.artifacts)
        self._build_local()
        self.pending = {t.task_id: t for t in self.plan.tasks.values() if not self._is_done(t)}
        self.display.start(Counter(t.kind for t in self.plan.tasks.values()))
        for task in self.plan.tasks.values():
            if task.task_id not in self.pending:
                self.display.done(task, reused=True)
        while (self.pending or self.in_flight) and not self.cancelled():
            self._collect()
            self._fail_blocked()
            self._send_ready()
            self.display.tick({t: entry.task for t, entry in self.in_flight.items()})
            if self.pending or self.in_flight:
                time.sleep(TICK_S)
        return self.failures

    def _build_local(self) -> None:
        for step in self.plan.local.values():
            if step.key not in self.committed:
                self.display.note(f"building {step.label}")
                self.artifacts.write_table(step.key, step.build(), producer={"step": step.label})
                self.committed.add(step.key)

    def _is_done(self, task: Task) -> bool:
        return all(key in self.committed for key in task.outputs.values())

    def _collect(self) -> None:
        waiting = {
            name: self.queue.waiting(name) for name in {e.task.service for e in self.in_flight.values()}
        }
        for task_id, entry in list(self.in_flight.items()):
            task = entry.task
            self.committed |= {
                k for k in task.outputs.values() if k not in self.committed and self.artifacts.exists(k)
            }
            if self._is_done(task):
                del self.in_flight[task_id]
                self.display.done(task)
            elif failure := read_failure(self.artifacts, task):
                del self.in_flight[task_id]
                self._fail(failure)
            elif task_id in waiting[task.service] or self.leases.alive(task_id):
                entry.last_seen_s = time.monotonic()
            elif time.monotonic() - entry.last_seen_s > VANISHED_S:
                self._resend(entry)

    def _resend(self, entry: _InFlight) -> None:
        if entry.sends >= MAX_SENDS:
            del self.in_flight[entry.task.task_id]
            reason = (
                f"sent {entry.sends} times and lost each time: the worker dies of it; see the cluster's logs"
            )
            self._fail(Failure(entry.task.task_id, entry.task.kind, "failed", reason))
            return
        self.resent += 1
        self.display.note(f"{entry.task.kind} {entry.task.task_id} was lost by its worker; sending it again")
        self.queue.send(entry.task)
        entry.sends += 1
        entry.last_seen_s = time.monotonic()

    def _fail(self, failure: Failure) -> None:
        self.failures[failure.task_id] = failure
        self.display.failed(failure.task_id, failure.kind, failure.reason)
        if self.max_failures is not None and len(self.failures) > self.max_failures:
            raise TooManyFailuresError(f"stopped after {len(self.failures)} failures (--max-failures)")

    def _fail_blocked(self) -> None:
        lost = {key: f for f in self.failures.values() for key in self.plan.tasks[f.task_id].outputs.values()}
        for task_id, task in list(self.pending.items()):
            cause = next(
                (lost[k] for k in task.inputs.values() if k in lost and k not in self.committed), None
            )
            if cause is not None:
                del self.pending[task_id]
                self._fail(
                    Failure(
                        task_id, task.kind, cause.status, f"needs {cause.kind}, which failed: {cause.reason}"
                    )
                )

    def _send_ready(self) -> None:
        busy = Counter(entry.task.service for entry in self.in_flight.values())
        for task_id, task in list(self.pending.items()):
            limit = IN_FLIGHT_PER_WORKER * max(1, self.workers.get(task.service, 1))
            if busy[task.service] >= limit or not self.committed.issuperset(task.inputs.values()):
                continue
            del self.pending[task_id]
            busy[task.service] += 1
            self.in_flight[task_id] = _InFlight(task)
            self.artifacts.store.delete(failure_path(task_id))  # of an earlier run: this is the retry
            if not self.leases.alive(task_id):  # another driver's worker may be at it already
                self.queue.send(task.model_copy(update={"run_id": self.run_id}))


def committed_keys(artifacts: Artifacts) -> set[str]:
    """The keys of all committed artifacts, by one listing instead of a request a key."""
    return {
        info.path.split("/")[1]
        for prefix in ("artifacts/", "restricted/")
        for info in artifacts.store.list(prefix)
        if info.path.endswith("/manifest.json")
    }


def failure_path(task_id: str) -> str:
    """Where a worker records that a task failed."""
    return f"failures/{task_id}.json"


def read_failure(artifacts: Artifacts, task: Task) -> Failure | None:
    """The recorded failure of a task, if its worker wrote one."""
    try:
        record = json.loads(artifacts.store.get(failure_path(task.task_id)))
    except NotFoundError:
        return None
    return Failure(task.task_id, task.kind, record.get("status", "failed"), record.get("reason", ""))


def remaining(plan: Plan, committed: Iterable[str]) -> list[Task]:
    """The tasks of a plan that are still to do, for a dry run."""
    done = set(committed)
    return [task for task in plan.tasks.values() if not done.issuperset(task.outputs.values())]
