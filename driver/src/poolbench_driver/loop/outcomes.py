"""Outcomes of a plan's tasks in the object store: committed, failed with a reason, or still to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import failure_path
from poolbench.errors import NotFoundError
from poolbench.statuses import Status
from poolbench.storage import Artifacts
from poolbench_driver.stages.failure import Failure
from poolbench_driver.stages.stage import Plan

Item = TypeVar("Item")
Found = TypeVar("Found")
REQUESTS_AT_ONCE = 16


class Requests:
    """Requests of the loop to the store, sent in parallel because a request over a network mostly waits."""

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts
        self._pool = ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="store")

    def existing(self, keys: Sequence[str]) -> set[str]:
        """Return the keys that are committed."""
        return {key for key, exists in zip(keys, self.each(self._artifacts.exists, keys), strict=True) if exists}

    def failures(self, tasks: Sequence[Task]) -> list[Failure | DamagedRecordError | None]:
        """Return the recorded failure of each task if any, or the error of a record that cannot be read."""
        return self.each(self._failure, tasks)

    def _failure(self, task: Task) -> Failure | DamagedRecordError | None:
        try:
            return read_failure(self._artifacts, task)
        except DamagedRecordError as error:
            return error

    def each(self, act: Callable[[Item], Found], items: Sequence[Item]) -> list[Found]:
        """Return the results of `act` for the items. Raise the first error."""
        if len(items) < 2:
            return [act(item) for item in items]
        return list(self._pool.map(act, items))


class DamagedRecordError(Exception):
    """Raised if the record of a failure cannot be read. The task must then be done again."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def read_failure(artifacts: Artifacts, task: Task) -> Failure | None:
    """Return the recorded failure of a task, if any. Raise DamagedRecordError if the record cannot be read."""
    path = failure_path(task.task_id)
    try:
        record = json.loads(artifacts.store.get(path))
        status = Status(record["status"])
        reason, damaged, code = (str(record.get(name, "")) for name in ("reason", "damaged", "code"))
    except NotFoundError:
        return None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise DamagedRecordError(path) from None
    return Failure(task.task_id, task.kind, status, reason, damaged=damaged, code=code)


def remaining(plan: Plan, committed: Iterable[str]) -> list[Task]:
    """Return the tasks of a plan that are still to do, for a dry run."""
    done = set(committed)
    return [task for task in plan.tasks.values() if not done.issuperset(task.outputs.values())]
