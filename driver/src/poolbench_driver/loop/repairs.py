"""Recovery of a run: artifacts that were deleted or damaged are set aside and made again."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import DAMAGED_FOLDER
from poolbench.errors import DamagedError, NotFoundError, PoolbenchError
from poolbench.queue import LeaseStore
from poolbench.storage import Artifacts
from poolbench.storage.damage import set_aside_if_damaged, set_object_aside, was_set_aside
from poolbench_driver.loop.outcomes import DamagedRecordError, Requests
from poolbench_driver.stages.failure import Failure
from poolbench_driver.stages.stage import Plan

if TYPE_CHECKING:
    from poolbench_driver.corpora.sources import LocalStep

#: How often one artifact is made again within a run.
MAX_REPAIRS = 3
#: How long another driver may take to set the same artifact aside.
LEASE_WAIT_S = 60.0


class OutdatedPlanError(PoolbenchError):
    """Raised if a stored artifact that the plan starts from is gone. A new plan computes the results without it."""


class FoundDamageError(PoolbenchError):
    """Tables could not be assembled, because some artifacts are damaged."""

    def __init__(self, damages: list[DamagedError]) -> None:
        super().__init__(str(damages[0]))
        self.damages = damages


class Repairs:
    """Sets damaged artifacts of a plan aside. A lease lets only one driver at a time do so."""

    def __init__(self, plan: Plan, artifacts: Artifacts, leases: LeaseStore, note: Callable[[str], None]) -> None:
        self.plan, self.artifacts, self.leases, self.note = plan, artifacts, leases, note
        self._num_set_aside: Counter[str] = Counter()
        self._reports: Counter[tuple[str, str]] = Counter()

    def repair(self, damage: DamagedError, reader: str = "") -> Task | LocalStep:
        """Set an artifact aside, and return the task or step that makes the artifact again.

        Several readers may report the same damage. The first report sets the artifact aside, and later reports find the
        artifact gone or made again. Therefore set-asides and the reports of one reader are limited, but not the sum of
        all reports. `reader` is the id of the task that met the damage, or "" for the driver.

        Raises:
            DamagedError: Nothing makes the artifact, or it was damaged too often. The message says what to do.
            OutdatedPlanError: This plan does not make the artifact, and another plan does not need it.
        """
        key = damage.key
        self._reports[key, reader] += 1
        if self._reports[key, reader] > MAX_REPAIRS or self._num_set_aside[key] > MAX_REPAIRS:
            what = f"{damage.what}, after it was made again {MAX_REPAIRS} times"
            raise DamagedError(key, what, "check the disk of the object store, and who else writes to it")
        what, place = self._set_aside(key)
        self._num_set_aside[key] += bool(place)
        maker = self.plan.producers.get(key) or self.plan.local.get(key)
        maker_name = f"{maker.kind} {maker.task_id}" if isinstance(maker, Task) else "the driver"
        then = f"{maker_name} makes it again" if maker else "this run does not make it"
        if place:
            self.note(f"damaged: {key}: {what}; set aside as {place}, {then}")
        if maker is not None:
            return maker
        if remedy := self.plan.facts.imported.get(key):
            raise DamagedError(key, damage.what, remedy)
        raise OutdatedPlanError(f"{key} was damaged and is set aside; the run is planned again without it")

    def may_have_missed(self, task: Task) -> bool:
        """Return whether a task may have missed an input because the input was set aside, perhaps by another driver."""
        if not any(was_set_aside(self.artifacts.store, key) for key in task.inputs.values()):
            return False
        self._reports["", task.task_id] += 1
        return self._reports["", task.task_id] <= MAX_REPAIRS

    def set_record_aside(self, path: str) -> None:
        """Set a damaged record aside that is not an artifact."""
        if place := set_object_aside(self.artifacts.store, path):
            self.note(f"damaged: {path} cannot be read; set aside as {place}, its task is done again")

    def _set_aside(self, key: str) -> tuple[str, str]:
        """Move a damaged artifact away. Return the damage, and the new path or "" if another driver was first."""
        deadline = time.monotonic() + LEASE_WAIT_S
        while (lease := self.leases.acquire(f"{DAMAGED_FOLDER}/{key}")) is None and time.monotonic() < deadline:
            time.sleep(0.1)
        with lease or contextlib.nullcontext():
            return set_aside_if_damaged(self.artifacts, key)


class Recovery:
    """Local steps and damaged artifacts of a run."""

    def __init__(self, plan: Plan, artifacts: Artifacts, leases: LeaseStore, note: Callable[[str], None]) -> None:
        self.plan, self.artifacts, self.note = plan, artifacts, note
        # The loop uses the same three objects.
        self.committed: set[str] = set()  # keys of the committed artifacts
        self.pending: dict[str, Task] = {}  # tasks still to send
        self.failures: dict[str, Failure] = {}
        self.requests = Requests(artifacts)
        self.repairs = Repairs(plan, artifacts, leases, note)

    def begin(self, committed: set[str]) -> None:
        """Take the committed keys, and build what the tasks start from."""
        self.committed |= committed
        self.repairing(self._build_local)

    def read_failures(self, tasks: Sequence[Task]) -> dict[str, Failure]:
        """Return recorded failures by task id. Set unreadable records aside, so that their tasks are sent again."""
        failures: dict[str, Failure] = {}
        for task, failure in zip(tasks, self.requests.failures(tasks), strict=True):
            if isinstance(failure, DamagedRecordError):
                self.repairs.set_record_aside(failure.path)
            elif failure is not None:
                failures[task.task_id] = failure
        return failures

    def settle(self, task: Task, failure: Failure) -> Failure | None:
        """Return the failure if it is final, or None if the task is done again, after its inputs where necessary."""
        if failure.damaged in {*task.inputs.values(), *task.outputs.values()}:
            damages = [DamagedError(failure.damaged, "it cannot be read")]
        elif failure.code == NotFoundError.code and self.repairs.may_have_missed(task):
            away = (key for key in task.inputs.values() if not self.artifacts.exists(key))
            damages = [DamagedError(key, "another driver has set it aside") for key in away]
        else:
            return failure
        try:
            for damage in damages:
                self.repair(damage, task.task_id)
        except DamagedError as error:
            return replace(failure, reason=str(error))
        self.pending[task.task_id] = task
        return None

    def repair(self, damage: DamagedError, reader: str = "") -> None:
        """Set a damaged artifact aside and make it again. The errors are those of `Repairs.repair`."""
        maker = self.repairs.repair(damage, reader)
        self.committed.discard(damage.key)
        if not isinstance(maker, Task):
            self.repairing(self._build_local)
        elif maker.task_id not in self.failures:
            self.pending[maker.task_id] = maker

    def repairing(self, act: Callable[[], None]) -> None:
        """Call `act`; after each damaged artifact that it meets, repair the artifact and call `act` again."""
        while True:
            try:
                return act()
            except DamagedError as error:
                self.repair(error)

    def _build_local(self) -> None:
        missing = [step for step in self.plan.local.values() if step.key not in self.committed]
        numbers = Counter(step.label for step in missing)
        for step in missing:
            if number := numbers.pop(step.label, 0):  # several have one label, and are noted once
                self.note(f"building {step.label}{f' ({number})' if number > 1 else ''}")
            content, producer = step.build(), {"step": step.label}
            if isinstance(content, dict):
                self.artifacts.write(step.key, content, producer=producer)
            else:
                self.artifacts.write_table(step.key, content, producer=producer)
            self.committed.add(step.key)
