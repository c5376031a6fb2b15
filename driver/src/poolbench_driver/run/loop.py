"""The loop: send what is ready, wait, record. It decides nothing about science and holds no truth of its own.

Completion is what the object store says. The queue may lose or repeat messages and workers may be killed:
a task that is neither committed, nor waiting, nor leased by a live worker is sent again.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import cancel_path, failure_path
from poolbench.errors import DamagedError, PoolbenchError
from poolbench.queue import LeaseStore, TaskQueue
from poolbench.statuses import Status
from poolbench.storage import Artifacts
from poolbench_driver.plan import Plan
from poolbench_driver.run.outcomes import Failure, committed_keys
from poolbench_driver.run.pace import InFlight, Pace
from poolbench_driver.run.progress import Display
from poolbench_driver.run.recovery import Recovery


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
        max_failures: int | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        run_id: str = "",
        pace: Pace | None = None,
    ) -> None:
        self.plan, self.artifacts, self.queue, self.leases = plan, artifacts, queue, leases
        self.display, self.max_failures, self.pace = display, max_failures, pace or Pace()
        self.cancelled, self.run_id = cancelled, run_id
        self.recovery = Recovery(plan, artifacts, leases, display.note)
        self.committed, self.pending = self.recovery.committed, self.recovery.pending
        self.failures = self.recovery.failures
        self.in_flight: dict[str, InFlight] = {}
        self.resent = 0
        self._away_since_s: float | None = None

    def run(self) -> dict[str, Failure]:
        """Runs to the end; returns the failures by task id.

        Raises:
            TooManyFailuresError: When more than ``max_failures`` tasks failed.
            StoreError, BrokerError: When one of them stays away for longer than ``pace.outage_s``.
            DamagedError, OutdatedPlanError: When this run cannot make a damaged artifact again.
            KeyboardInterrupt: Passed on; tasks in work finish by themselves.
        """
        self.recovery.begin(committed_keys(self.artifacts))
        self.pending.update((t.task_id, t) for t in self.plan.tasks.values() if not self._is_done(t))
        self.display.start(Counter(t.kind for t in self.plan.tasks.values()))
        for task in self.plan.tasks.values():
            if task.task_id not in self.pending:
                self.display.done(task, reused=True)
        self._work()
        return self.failures

    def repair(self, damages: Iterable[DamagedError]) -> dict[str, Failure]:
        """Makes damaged artifacts again that were found after ``run``; returns and raises what that does."""
        for damage in damages:
            self.recovery.repair(damage)
        self._work()
        return self.failures

    @property
    def unfinished(self) -> bool:
        """Whether tasks are left, as after a cancellation."""
        return bool(self.pending or self.in_flight)

    def _work(self) -> None:
        while self.unfinished and not self.cancelled():
            self._step()
            self.display.tick({t: entry.task for t, entry in self.in_flight.items()})
            if self.unfinished:
                time.sleep(self.pace.tick_s)
        if self.cancelled():
            self._cancel_in_flight()
        self.recovery.erase_texts()  # what an earlier run left, and what an outage was in the way of
        if self.unfinished and not self.cancelled():  # receipts were damaged
            self._work()

    def _step(self) -> None:
        """One look at everything; a short absence of store or broker is waited out."""
        try:
            waiting = self._waiting()
            self._collect(waiting)
            self._fail_blocked()
            self._send_ready(waiting)
            self.recovery.erase_texts()
        except PoolbenchError as error:
            if not error.retryable:
                raise
            if self._away_since_s is None:
                self._away_since_s = time.monotonic()
                self.display.note(f"waiting: {error}")
            if time.monotonic() - self._away_since_s > self.pace.outage_s:
                raise
        else:
            self._away_since_s = None

    def _is_done(self, task: Task) -> bool:
        return self.committed.issuperset(task.outputs.values())

    def _waiting(self) -> dict[str, set[str]]:
        tasks = [*self.pending.values(), *(entry.task for entry in self.in_flight.values())]
        return defaultdict(set, {name: self.queue.waiting(name) for name in {task.service for task in tasks}})

    def _collect(self, waiting: dict[str, set[str]]) -> None:
        for task_id, entry in list(self.in_flight.items()):
            task = entry.task
            # The failure is read first: its worker commits nothing after it, so what is committed is complete.
            failure = self.recovery.read_failure(task)
            self._look_for_outputs(task, every=failure is not None)
            if self._is_done(task):
                del self.in_flight[task_id]
                self.display.done(task)
            elif failure:
                del self.in_flight[task_id]
                if standing := self.recovery.settle(task, failure):
                    self._fail(standing)
            elif task_id in waiting[task.service]:
                entry.seen(leased=False)
            elif self.leases.alive(task_id):
                entry.seen(leased=True)
            else:
                self._miss(entry)

    def _look_for_outputs(self, task: Task, *, every: bool) -> None:
        """Asks the store for outputs up to the first that is missing: one request a look, not one a key."""
        for key in task.outputs.values():
            if key in self.committed or self.artifacts.exists(key):
                self.committed.add(key)
            elif not every:
                break

    def _miss(self, entry: InFlight) -> None:
        """Neither waiting nor in work: after a while it was lost by its worker or by the broker."""
        entry.leased = False
        if not entry.vanished(self.pace):
            return
        task = entry.task
        entry.losses += entry.taken
        if entry.hopeless(self.pace):
            del self.in_flight[task.task_id]
            reason = f"sent {entry.sends} times and lost each time; the log of the {task.service} says why"
            self._fail(Failure(task.task_id, task.kind, Status.FAILED, reason))
            return
        self._send(task)
        self.resent += 1
        self.display.note(f"{task.kind} {task.task_id} was lost by its worker; sent again")
        entry.sent_again()

    def _fail(self, failure: Failure) -> None:
        self.failures[failure.task_id] = failure
        self.display.failed(failure.task_id, failure.kind, failure.reason)
        own = sum(not each.blocked for each in self.failures.values())
        if self.max_failures is not None and own > self.max_failures:
            raise TooManyFailuresError(
                f"stopped after {own} failed tasks (--max-failures {self.max_failures}), "
                f"the last one {failure.kind}: {failure.reason}"
            )

    def _fail_blocked(self) -> None:
        lost = {key: f for f in self.failures.values() for key in self.plan.tasks[f.task_id].outputs.values()}
        for task_id, task in list(self.pending.items()):
            missing = (lost[k] for k in task.inputs.values() if k in lost and k not in self.committed)
            if cause := next(missing, None):
                del self.pending[task_id]
                reason = cause.reason if cause.blocked else f"needs {cause.kind}, which failed: {cause.reason}"
                self._fail(Failure(task_id, task.kind, cause.status, reason, blocked=True, quoted=cause.quoted))

    def _send_ready(self, waiting: dict[str, set[str]]) -> None:
        in_work = Counter(entry.task.service for entry in self.in_flight.values() if entry.leased)
        queued = Counter(entry.task.service for entry in self.in_flight.values() if not entry.leased)
        for task_id, task in list(self.pending.items()):
            limit = max(self.pace.queued_ahead, in_work[task.service])
            if queued[task.service] >= limit or not self.committed.issuperset(task.inputs.values()):
                continue
            self.artifacts.store.delete(failure_path(task_id))  # of an earlier run: this is the retry
            self.artifacts.store.delete(cancel_path(task_id))
            # Another driver, or this run before it was interrupted, may have sent it already.
            if task_id not in waiting[task.service] and not self.leases.alive(task_id):
                self._send(task)
            queued[task.service] += 1
            self.in_flight[task_id] = InFlight(task)
            del self.pending[task_id]

    def _cancel_in_flight(self) -> None:
        """Asks the workers to drop what this run has sent; another run that wants the same sends it again."""
        for task_id in self.in_flight:
            self.artifacts.store.put(cancel_path(task_id), b"{}")

    def _send(self, task: Task) -> None:
        self.artifacts.store.delete(cancel_path(task.task_id))
        self.queue.send(task.model_copy(update={"run_id": self.run_id}))
