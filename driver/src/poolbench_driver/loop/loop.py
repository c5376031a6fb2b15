"""The loop of a run: send tasks that are ready, wait, record outcomes.

The object store alone decides which tasks are complete. The queue may lose or repeat messages, and workers may be
killed: a task that is neither committed, nor waiting, nor leased by a live worker is sent again.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence, Set

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import cancel_path, failure_path
from poolbench.errors import DamagedError, PoolbenchError
from poolbench.queue import LeaseStore, TaskQueue
from poolbench.statuses import Status
from poolbench.storage import Artifacts
from poolbench_driver.loop.pace import SYSTEM_CLOCK, Clock, InFlight, Pace
from poolbench_driver.loop.progress import Display
from poolbench_driver.loop.repairs import Recovery
from poolbench_driver.stages.failure import Failure
from poolbench_driver.stages.stage import Plan, committed_keys


class TooManyFailuresError(PoolbenchError):
    """More tasks failed than --max-failures allows."""


class RunLoop:
    """Work on the tasks of a plan until each is complete or failed."""

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
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Prepare the loop.

        Args:
            plan: The tasks. Each service receives its tasks in this order.
            artifacts: The store that decides which tasks are complete.
            queue: The queue that tasks are sent to.
            leases: The leases of tasks in work.
            display: Receives the events of the run.
            max_failures: Largest number of failed tasks before the run stops.
            cancelled: Returns whether the run should end.
            run_id: Id of the run, which every task carries.
            pace: Intervals and limits.
            clock: The time.
        """
        self.plan, self.artifacts, self.queue, self.leases = plan, artifacts, queue, leases
        self.display, self.max_failures, self.pace = display, max_failures, pace or Pace()
        self.cancelled, self.run_id, self.clock = cancelled, run_id, clock
        self.recovery = Recovery(plan, artifacts, leases, display.note)
        self.committed, self.pending = self.recovery.committed, self.recovery.pending
        self.failures = self.recovery.failures
        self.in_flight: dict[str, InFlight] = {}
        self.resent = 0
        self._away_since_s: float | None = None

    def run(self) -> dict[str, Failure]:
        """Run to the end, and return the failures by task id. After a KeyboardInterrupt, workers finish their tasks.

        Raises:
            TooManyFailuresError: More than `max_failures` tasks failed.
            StoreError, BrokerError: The store or the broker was unavailable for longer than `pace.outage_s`.
            DamagedError, OutdatedPlanError: This run cannot make a damaged artifact again.
        """
        self.recovery.begin(committed_keys(self.artifacts))
        self.pending.update((name, task) for name, task in self.plan.tasks.items() if not self._is_done(task))
        self.display.start(Counter(t.kind for t in self.plan.tasks.values()))
        for task in self.plan.tasks.values():
            if task.task_id not in self.pending:
                self.display.done(task, reused=True)
        self._work()
        return self.failures

    def repair(self, damages: Iterable[DamagedError]) -> dict[str, Failure]:
        """Remake artifacts that were found damaged after `run`. The result and the errors are those of `run`."""
        for damage in damages:
            self.recovery.repair(damage)
        self._work()
        return self.failures

    @property
    def unfinished(self) -> bool:
        """Return whether tasks are left, as after a cancellation."""
        return bool(self.pending or self.in_flight)

    def _work(self) -> None:
        while self.unfinished and not self.cancelled():
            self._step()
            self.display.tick({t: entry.task for t, entry in self.in_flight.items()})
            if self.unfinished:
                self.clock.sleep(self.pace.tick_s)
        if self.cancelled():
            for task_id in self.in_flight:  # another run that needs the same tasks sends them again
                self.artifacts.store.put(cancel_path(task_id), b"{}")

    def _step(self) -> None:
        """Do one round. A short outage of the store or the broker is tolerated."""
        try:
            tasks = [*self.pending.values(), *(entry.task for entry in self.in_flight.values())]
            waiting = defaultdict(set, {name: self.queue.waiting(name) for name in {task.service for task in tasks}})
            self._collect(waiting)
            self._fail_blocked()
            self._send_ready(waiting)
        except PoolbenchError as error:
            if not error.retryable:
                raise
            if self._away_since_s is None:
                self._away_since_s = self.clock.now_s()
                self.display.note(f"waiting: {error}")
            if self.clock.now_s() - self._away_since_s > self.pace.outage_s:
                raise
        else:
            self._away_since_s = None

    def _is_done(self, task: Task) -> bool:
        return self.committed.issuperset(task.outputs.values())

    def _collect(self, waiting: dict[str, set[str]]) -> None:
        """Collect the outcomes of tasks that ended. Note which tasks wait, and which tasks are in work."""
        queued = {task_id for task_id, entry in self.in_flight.items() if task_id in waiting[entry.task.service]}
        leased = self.leases.held(self.in_flight.keys() - queued)
        for task_id in queued | leased:
            self.in_flight[task_id].seen(leased=task_id in leased)
        ended = self.in_flight.keys() - queued - leased
        due = [entry for task_id, entry in self.in_flight.items() if task_id in ended or entry.look_due(self.pace)]
        # Read failures first: their workers commit nothing after them, so the outputs found then are final.
        failures = self.recovery.read_failures([self.in_flight[task_id].task for task_id in ended])
        self._look_for_outputs([entry.task for entry in due], ended)
        for entry in due:
            task, failure = entry.task, failures.get(entry.task.task_id)
            entry.looked()
            if self._is_done(task):
                del self.in_flight[task.task_id]
                self.display.done(task)
            elif failure:
                del self.in_flight[task.task_id]
                if standing := self.recovery.settle(task, failure):
                    self._fail(standing)
            elif task.task_id in ended:
                self._miss(entry)

    def _look_for_outputs(self, tasks: Sequence[Task], ended: Set[str]) -> None:
        """Look up all outputs of ended tasks. For other tasks, look up one output, and the rest if it exists."""
        missing = {task.task_id: [key for key in task.outputs.values() if key not in self.committed] for task in tasks}
        first = [key for task_id, keys in missing.items() for key in (keys if task_id in ended else keys[:1])]
        committed = self.recovery.requests.existing(first)
        rest = [
            key
            for task_id, keys in missing.items()
            if task_id not in ended and committed.issuperset(keys[:1])
            for key in keys[1:]
        ]
        self.committed |= committed | self.recovery.requests.existing(rest)

    def _miss(self, entry: InFlight) -> None:
        """Resend a task that is neither waiting nor leased. The task counts as lost only after some time."""
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
        num_failed = sum(not past_failure.blocked for past_failure in self.failures.values())
        if self.max_failures is not None and num_failed > self.max_failures:
            raise TooManyFailuresError(
                f"stopped after {num_failed} failed tasks (--max-failures {self.max_failures}), "
                f"the last one {failure.kind}: {failure.reason}"
            )

    def _fail_blocked(self) -> None:
        lost = {key: f for f in self.failures.values() for key in self.plan.tasks[f.task_id].outputs.values()}
        for task_id, task in list(self.pending.items()):
            missing = (lost[k] for k in task.inputs.values() if k in lost and k not in self.committed)
            if cause := next(missing, None):
                del self.pending[task_id]
                reason = cause.reason if cause.blocked else f"needs {cause.kind}, which failed: {cause.reason}"
                self._fail(Failure(task_id, task.kind, cause.status, reason, blocked=True))

    def _send_ready(self, waiting: dict[str, set[str]]) -> None:
        in_work = Counter(entry.task.service for entry in self.in_flight.values() if entry.leased)
        queued = Counter(entry.task.service for entry in self.in_flight.values() if not entry.leased)
        ready: list[Task] = []
        for task in self.pending.values():
            limit = max(self.pace.queued_ahead, in_work[task.service])
            if queued[task.service] < limit and self.committed.issuperset(task.inputs.values()):
                queued[task.service] += 1
                ready.append(task)
        # Failures were left by an earlier run; this is the retry.
        marks = [path(task.task_id) for task in ready for path in (failure_path, cancel_path)]
        self.recovery.requests.each(self.artifacts.store.delete, marks)
        leased = self.leases.held(task.task_id for task in ready)
        for task in ready:
            # Another driver, or this run before it was interrupted, may have sent it already.
            if task.task_id not in waiting[task.service] and task.task_id not in leased:
                self._publish(task)
            self.in_flight[task.task_id] = InFlight(task, self.clock)
            del self.pending[task.task_id]

    def _send(self, task: Task) -> None:
        self.artifacts.store.delete(cancel_path(task.task_id))
        self._publish(task)

    def _publish(self, task: Task) -> None:
        self.queue.send(task.model_copy(update={"run_id": self.run_id}))
