"""The order in which tasks are sent: those first that the longest chain of further tasks waits for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from poolbench.contracts.tasks import Task
from poolbench_driver.estimate.amounts import amounts_of
from poolbench_driver.stages.stage import Plan, PlannedWork

Planned = TypeVar("Planned", bound=Plan)


def ordered(plan: Planned) -> Planned:
    """Return the plan with its tasks in the order of the longest chains; of equal ones, the task with most work first.

    A chain counts tasks and no times, so the order is the same on every machine.
    """
    length, amounts = chains(plan.tasks.values(), dict.fromkeys(plan.tasks, 1.0)), amounts_of(plan)
    work = {name: amount.work.amount if amount.work else 0.0 for name, amount in amounts.items()}
    tasks = sorted(plan.tasks.items(), key=lambda item: (-length[item[0]], -work[item[0]]))
    return replace(plan, work=PlannedWork(dict(tasks), plan.local))


def chains(tasks: Iterable[Task], seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of the longest chain of tasks that begins with each task, by its id.

    Args:
        tasks: Tasks in an order in which each comes after those that make its inputs.
        seconds: Time of each task by id.
    """
    planned = list(tasks)
    makers = {key: task.task_id for task in planned for key in task.outputs.values()}
    after: dict[str, float] = defaultdict(float)  # the longest chain behind a task
    chain_s: dict[str, float] = {}
    for task in reversed(planned):
        chain_s[task.task_id] = seconds[task.task_id] + after[task.task_id]
        for key in task.inputs.values():
            if key in makers:
                after[makers[key]] = max(after[makers[key]], chain_s[task.task_id])
    return chain_s
