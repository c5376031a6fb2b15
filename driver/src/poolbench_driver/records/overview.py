"""What a cluster does: the health of its services, its queues, dead letters and damage, and its runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from poolbench.contracts.wire import SERVICES
from poolbench.errors import PoolbenchError
from poolbench_driver.cluster.services import Services
from poolbench_driver.cluster.session import cluster_state, try_health
from poolbench_driver.records.finding import open_runs


def overview(connected: Services, output: Path) -> dict[str, Any]:
    """Return the state of the services, the queues and the runs. Runs below `output` are included.

    Raises:
        PoolbenchError: The store or the broker cannot be read.
    """
    with ThreadPoolExecutor(len(SERVICES)) as pool:  # one that is stuck answers late
        states = dict(zip(SERVICES, pool.map(partial(try_health, connected), SERVICES), strict=True))
    try:
        cluster = cluster_state(connected)
        runs = open_runs(output, connected.settings).all()
    except PoolbenchError as error:
        if connected.settings.broker_url:
            raise
        # Over HTTP one service answers for the queues and the runs. The health of the others is worth showing.
        services = [{"service": name, "health": state} for name, state in states.items()]
        return {"services": services, "newest_dead_letters": [], "runs": [], "damaged": "", "unknown": str(error)}
    return {
        "services": [{"service": one["service"], "health": states[one["service"]], **one} for one in cluster["queues"]],
        "newest_dead_letters": cluster["newest_dead_letters"],
        "runs": [{"run": run.id, **run.read_state(), "local": run.is_here} for run in runs],
        "damaged": cluster["damaged"],
    }
