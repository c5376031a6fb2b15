"""The order in which tasks are sent: those first that the longest chain of further tasks waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from poolbench_driver.estimate.amounts import amounts_of
from poolbench_driver.estimate.schedule import chains
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
