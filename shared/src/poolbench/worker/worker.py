"""Execute one task: skip committed outputs, hold the lease, run the handler, record a failure."""

import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from poolbench.cancellation import between_steps
from poolbench.contracts.tasks import MalformedTaskError, Task, parse_task
from poolbench.contracts.wire import failure_path, progress_path
from poolbench.errors import (
    CancelledTaskError,
    ConfigError,
    DamagedError,
    InputError,
    PoolbenchError,
    StoreError,
    UnknownNameError,
)
from poolbench.machine.about import accelerator
from poolbench.queue.leases import LeaseStore
from poolbench.statuses import Code, Status, TaskOutcome
from poolbench.steps import STEPS
from poolbench.storage.artifacts import Artifacts
from poolbench.telemetry.catalog import REFUSED, RETRIED, TASK_SECONDS, TASKS, TASKS_RUNNING
from poolbench.telemetry.ids import RUN, TASK, identified
from poolbench.telemetry.instruments import OTHER
from poolbench.telemetry.traces import span
from poolbench.worker.service import Handler, Service
from poolbench.worker.taskio import TaskIO, handling

_LOG = logging.getLogger("poolbench.task")
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
#: Outcomes of deliveries that ran a handler.
_WORKED = (TaskOutcome.DONE, TaskOutcome.FAILED)


@dataclass(frozen=True)
class Sender:
    """Facts that the sender of a task states about itself. Other clients may state nothing."""

    step_version: int | None = None  # of the step of the task
    store_id: str | None = None


class OtherVersionError(InputError):
    """The sender of a task and this service have different code for its step, so the keys of its outputs differ."""


class OtherStoreError(ConfigError):
    """A task names artifacts of another object store. It belongs to another cluster, which uses the same broker."""


def require_kin(task: Task, sender: Sender, store_id: str) -> None:
    """Raise OtherStoreError or OtherVersionError if a task is not for this worker, whose store has the id `store_id`.

    An id is compared only where both are known.
    """
    if sender.store_id and store_id and sender.store_id != store_id:
        raise OtherStoreError(
            f"{task.task_id} was sent by a cluster with another object store, which uses the same broker; give each "
            "cluster a Redis database or folder of its own"
        )
    step = STEPS.get(task.kind)
    if step is not None and sender.step_version not in (None, step.version):
        raise OtherVersionError(
            f"{task.kind} has version {sender.step_version} in the driver and {step.version} in this service: install "
            "the same version of PoolBench everywhere, and restart the cluster"
        )


class RetryTaskError(Exception):
    """Raised if the infrastructure under a task failed.

    The queue delivers the task again, a bounded number of times.
    """

    outcome: str = RETRIED


class RefusedTaskError(Exception):
    """Raised if a message is not a task of this service.

    The failure is recorded, and the message is not delivered again.
    """

    outcome = REFUSED


class _UnknownKindError(UnknownNameError):
    """The service has no handler for the task's kind."""


@dataclass(frozen=True)
class Failure:
    """The recorded reason of a failed task."""

    code: str
    status: Status
    reason: str
    retryable: bool
    damaged: str = ""  # the key of an artifact that could not be read

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """Classify an exception.

        Connection errors, timeouts and a lack of memory are retried. Any other error that is not a PoolbenchError is a
        bug.
        """
        if isinstance(error, PoolbenchError):
            damaged = error.key if isinstance(error, DamagedError) else ""
            return cls(error.code, error.status, str(error), error.retryable, damaged)
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, ConnectionError | TimeoutError | MemoryError):
            return cls(Code.INFRASTRUCTURE, Status.FAILED, reason, True)
        return cls(Code.INTERNAL, Status.FAILED, reason, False)


@dataclass
class Delivery:
    """A delivery of a task, with the task's kind or `other` if the kind is unknown. `outcome` is set at the end."""

    kind: str
    outcome: str = TaskOutcome.FAILED


class DeliveryMeter:
    """Counts and times the deliveries to a worker."""

    def __init__(self, service: str, kinds: Collection[str]) -> None:
        self._service, self._kinds = service, kinds
        self._num_running = 0
        self._lock = threading.Lock()

    @contextmanager
    def measuring(self, kind: object) -> Iterator[Delivery]:
        """Measure the block as a delivery. If an exception is raised, its attribute `outcome` decides the outcome."""
        # The kind comes from a message, and a label must not.
        kind_label = kind if isinstance(kind, str) and kind in self._kinds else OTHER
        delivery, began = Delivery(kind_label), time.perf_counter()
        self._running(+1)
        try:
            yield delivery
        except Exception as error:
            delivery.outcome = getattr(error, "outcome", TaskOutcome.FAILED)
            raise
        finally:
            self._running(-1)
            TASKS.add(service=self._service, kind=kind_label, outcome=delivery.outcome)
            if delivery.outcome in _WORKED:
                TASK_SECONDS.observe(time.perf_counter() - began, service=self._service, kind=kind_label)

    def _running(self, change: int) -> None:
        with self._lock:
            self._num_running += change
            TASKS_RUNNING.set(self._num_running, service=self._service)


class Worker:
    """Runs the tasks of a service, with inputs and outputs in an object store."""

    def __init__(self, service: Service, artifacts: Artifacts, leases: LeaseStore, store_id: str = "") -> None:
        """Serve tasks; `store_id` is the id of the object store, empty if tasks of other stores are not to be found."""
        self.service = service
        self._store_id = store_id
        self.artifacts = artifacts
        self.leases = leases
        self.num_failed = 0
        self.meter = DeliveryMeter(service.name, service.handlers)
        # Called between two steps of a task, to let requests go first, where there are some.
        self.pause: Callable[[], None] = lambda: None
        self._in_work: set[object] = set()

    @property
    def num_in_work(self) -> int:
        """Return the number of tasks in work."""
        return len(self._in_work)

    def run(
        self, message: Mapping[str, Any], *, attempt: int = 1, final: bool = True, sender: Sender | None = None
    ) -> TaskOutcome:
        """Run the task in `message` and return its outcome. `attempt` numbers its deliveries from 1.

        Failures are written to the object store.

        Raises:
            RetryTaskError: The infrastructure failed. After the `final` delivery, the failure is recorded too.
            RefusedTaskError: The message is not a task of this service.
        """
        ids = {RUN: _label(message.get("run_id")), TASK: _label(message.get("task_id"))}
        with identified(**ids), self.meter.measuring(message.get("kind")) as delivery, span(delivery.kind, **ids):
            outcome = self._run(message, attempt, final, sender or Sender())
            delivery.outcome = outcome
        return outcome

    def _run(self, message: Mapping[str, Any], attempt: int, final: bool, sender: Sender) -> TaskOutcome:
        try:
            task = parse_task(message)
            require_kin(task, sender, self._store_id)
            return self._claim(task, attempt)
        except OtherStoreError as error:  # a record in this store would be no failure of a task of this cluster
            _LOG.error("%s", error)
            raise RefusedTaskError(str(error)) from error
        except CancelledTaskError as error:
            _LOG.info("%s", error)
            return TaskOutcome.CANCELLED
        except Exception as error:
            # A bug in a handler fails its own task, never the replica; the trace is logged.
            failure = Failure.of(error)
            if final or not failure.retryable:
                self._record(message, failure, attempt)
            if isinstance(error, MalformedTaskError | OtherVersionError | _UnknownKindError):
                raise RefusedTaskError(failure.reason) from error
            if failure.retryable:
                retry = RetryTaskError(f"{message.get('task_id')}: {failure.reason}")
                retry.outcome = TaskOutcome.FAILED if final else RETRIED
                raise retry from error
            return TaskOutcome.FAILED

    def _claim(self, task: Task, attempt: int) -> TaskOutcome:
        if task.kind not in self.service.handlers:
            raise _UnknownKindError(f"task kind of the {self.service.name}", task.kind, self.service.handlers)
        handler = self.service.handlers[task.kind]
        lease = self.leases.acquire(task.task_id)
        if lease is None:
            _LOG.info("%s %s: another worker holds it", task.kind, task.task_id)
            return TaskOutcome.LEASED
        with lease, self._counted():
            io = TaskIO(task, self.artifacts, self._producer(task, attempt))
            if not io.missing:
                return TaskOutcome.SKIPPED
            return self._execute(handler, task, io)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        mark = object()  # adding to a set, and removing from it, is atomic
        self._in_work.add(mark)
        try:
            yield
        finally:
            self._in_work.discard(mark)

    def _execute(self, handler: Handler, task: Task, io: TaskIO) -> TaskOutcome:
        _LOG.info("%s %s: %d outputs to make", task.kind, task.task_id, len(io.missing))
        io.check_cancelled()
        with handling(io), between_steps(self.pause):
            handler(task, io)
        if io.missing:
            raise PoolbenchError(f"{task.kind} ended without its outputs {', '.join(sorted(io.missing))}")
        try:  # its outputs are there, and count more than these records
            self.artifacts.store.delete(failure_path(task.task_id))
            self.artifacts.store.delete(progress_path(task.task_id))
        except StoreError as error:
            _LOG.warning("records of task %s cannot be removed: %s", task.task_id, error)
        _LOG.info("%s %s: done", task.kind, task.task_id)
        return TaskOutcome.DONE

    def _producer(self, task: Task, attempt: int) -> dict[str, Any]:
        return {
            "service": self.service.name,
            "kind": task.kind,
            "task_id": task.task_id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "accelerator": accelerator(),
            "delivery": attempt,
        }

    def _record(self, message: Mapping[str, Any], failure: Failure, attempt: int) -> None:
        task_id = str(message.get("task_id", "unknown"))
        _LOG.error("%s %s failed: %s", message.get("kind", "?"), task_id, failure.reason, exc_info=True)
        self.num_failed += 1
        body = {
            "task_id": task_id,
            "kind": message.get("kind", ""),
            **asdict(failure),
            "attempt": attempt,
            "host": socket.gethostname(),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        try:
            self.artifacts.store.put(failure_path(task_id), json.dumps(body).encode())
        except PoolbenchError:
            # The driver sees neither manifest nor lease and sends the task again.
            _LOG.error("%s: the failure could not be recorded", task_id, exc_info=True)


def _label(value: object) -> str:
    """Return an id of a message, which may hold anything, for logs."""
    return value if isinstance(value, str) and _ID.fullmatch(value) else ""
