"""The queues of a cluster as commands show them: from the broker where it is known, else over HTTP."""

from __future__ import annotations

from typing import Any

from poolbench.contracts.wire import SERVICES
from poolbench.storage.damage import described_damage
from poolbench_driver.cluster.services import Services
from poolbench_driver.cluster.session import open_artifacts


def cluster_state(services: Services) -> dict[str, Any]:
    """Return the state of all queues, the newest dead letters and the damage, as `GET /pooler/cluster` does."""
    settings = services.settings
    if not settings.broker_url:
        return services.get("pooler", "cluster")
    from poolbench.queue import Broker, TaskQueue

    queue = TaskQueue(Broker(settings.broker_url))
    return {
        "queues": [{"service": name, **queue.summary(name)} for name in SERVICES],
        "newest_dead_letters": queue.newest_letters(),
        "damaged": described_damage(open_artifacts(settings)),
    }
