"""The order in which tasks are sent: those first that the longest chain of further tasks waits for."""

from __future__ import annotations

from poolbench_driver.estimate.estimate import Cluster, estimate_tasks
from poolbench_driver.estimate.hardware import get_gpu
from poolbench_driver.estimate.rates import Rates
from poolbench_driver.estimate.schedule import chains
from poolbench_driver.stages.stage import Plan

#: Tasks for which the model has no formula count as this long.
_UNKNOWN_S = 1.0


def chains_of(plan: Plan) -> dict[str, float]:
    """Return the time of the longest chain of tasks that begins with each task of a plan.

    Only the proportions matter, so the times are those of the model for one GPU, wherever the run is.
    """
    each = estimate_tasks(plan, plan.tasks.values(), Rates(), Cluster(gpus=1, gpu=get_gpu("h100")))
    seconds = {name: found.seconds.expected if found.seconds else _UNKNOWN_S for name, found in each.items()}
    return chains(plan.tasks.values(), seconds)
