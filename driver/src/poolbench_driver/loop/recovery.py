"""Recovery of a run: artifacts that were deleted or damaged are made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from poolbench.contracts.tasks import Task
from poolbench.errors import DamagedError, NotFoundError
from poolbench.queue import LeaseStore
from poolbench.storage import Artifacts
from poolbench_driver.loop.outcomes import DamagedRecordError, Failure, Requests
from poolbench_driver.loop.repairs import Repairs
from poolbench_driver.stages.stage import Plan


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
        """Return recorded failures by task id; set unreadable records aside, so that their tasks are sent again."""
        failures: dict[str, Failure] = {}
        for task, failure in zip(tasks, self.requests.failures(tasks), strict=True):
            if isinstance(failure, DamagedRecordError):
                self.repairs.set_record_aside(failure.path)
            elif failure is not None:
                failures[task.task_id] = failure
        return failures

    def settle(self, task: Task, failure: Failure) -> Failure | None:
        """Return the failure if it is final; None if the task is done again, after its inputs where necessary."""
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
        """Set a damaged artifact aside and make it again; raise the same errors as `Repairs.repair`."""
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
        for step in self.plan.local.values():
            if step.key not in self.committed:
                self.note(f"building {step.label}")
                content, producer = step.build(), {"step": step.label}
                if isinstance(content, dict):
                    self.artifacts.write(step.key, content, producer=producer)
                else:
                    self.artifacts.write_table(step.key, content, producer=producer)
                self.committed.add(step.key)
