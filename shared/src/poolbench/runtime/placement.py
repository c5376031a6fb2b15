"""Which services share the machine of a replica, according to Ray."""

import math
from collections.abc import Mapping
from typing import Any

from poolbench.contracts.wire import SERVICES
from poolbench.runtime.memory import limit_memory
from poolbench.settings import MemorySettings


def limit_replica(service: str, num_replicas: int) -> None:
    """Limit the memory of this replica to its share of the machine; `num_replicas` counts all nodes."""
    import ray

    node_id = ray.get_runtime_context().get_node_id()
    offers = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    shared = MemorySettings.load().shared_machine
    limit_memory(service, *neighbours(service, num_replicas, node_id, offers, shared=shared))


def neighbours(
    service: str, num_replicas: int, node_id: str, offers: Mapping[str, Mapping[str, Any]], *, shared: bool
) -> tuple[list[str], int]:
    """Return the services of a replica's machine, and the largest number of replicas of its own service there.

    Args:
        service: Service of the replica.
        num_replicas: Replicas on all nodes together.
        node_id: The replica's node.
        offers: Resources by node; nodes offer places for services under the services' names.
        shared: Whether other nodes run on the same machine.
    """
    nodes = sum(1 for resources in offers.values() if resources.get(service))
    here = [name for name in SERVICES if offers.get(node_id, {}).get(name)]
    replicas = num_replicas if shared else math.ceil(num_replicas / max(1, nodes))
    return (list(SERVICES) if shared or not here else here), replicas
