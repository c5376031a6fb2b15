"""What the object store says of a plan's tasks: committed, failed and why, or still to do."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from poolbench.contracts.tasks import Task
from poolbench.errors import NotFoundError
from poolbench.storage import Artifacts
from poolbench_driver.plan import Plan


@dataclass(frozen=True)
class Failure:
    """Why a task has no outputs; ``blocked`` where it was never sent, for want of an input."""

    task_id: str
    kind: str
    status: str
    reason: str
    blocked: bool = False


def committed_keys(artifacts: Artifacts) -> set[str]:
    """The keys of all committed artifacts, by one listing instead of a request a key."""
    return {key for key, info in artifacts.objects() if info.path.endswith("/manifest.json")}


def failure_path(task_id: str) -> str:
    """Where a worker records that a task failed."""
    return f"failures/{task_id}.json"


def read_failure(artifacts: Artifacts, task: Task) -> Failure | None:
    """The recorded failure of a task, if its worker wrote one."""
    try:
        raw = artifacts.store.get(failure_path(task.task_id))
    except NotFoundError:
        return None
    try:
        record = dict(json.loads(raw))
    except (ValueError, TypeError, RecursionError):
        reason = f"its failure was recorded, but {failure_path(task.task_id)} in the store is damaged"
        return Failure(task.task_id, task.kind, "failed", reason)
    return Failure(task.task_id, task.kind, str(record.get("status", "failed")), str(record.get("reason", "")))


def remaining(plan: Plan, committed: Iterable[str]) -> list[Task]:
    """The tasks of a plan that are still to do, for a dry run."""
    done = set(committed)
    return [task for task in plan.tasks.values() if not done.issuperset(task.outputs.values())]
