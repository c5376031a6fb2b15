"""Processes and machines that are killed."""

import random
import time
from collections.abc import Collection

from tests.servers.nodes import HEAVY, LIGHT, Nodes
from tests.waiting import wait_until

from poolbench.contracts.wire import SERVICES
from poolbench.queue.messages import queue_name

AWAY_S = 5.0  # how long a part that comes back is away
#: The workers, and what runs there.
WORKERS = {"first": LIGHT, "second": HEAVY}
_DRIVER = "poolbench-driver"


def busy(nodes: Nodes) -> set[str]:
    """Return the services whose tasks wait."""

    def read() -> set[str]:
        broker = nodes.broker()
        return {name for name in SERVICES if broker.llen(queue_name(name))}

    return nodes.inside(read)


def replica(nodes: Nodes, rng: random.Random) -> Collection[str]:
    """Kill the replica of a service that has work, if there is one."""
    service = rng.choice(sorted(busy(nodes)) or SERVICES)
    for machine in WORKERS:
        nodes.machines[machine].kill_processes(f"ServeReplica:{service}:")
    return [service]


def engine(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Kill the process of vLLM's engine."""
    machine = nodes.machines["second"]
    # By the command that started it where it could not name itself (`tests.ports`).
    machine.kill_processes("VLLM::EngineCor") or machine.kill_processes("multiprocessing.spawn")
    return ["steerer"]


def proxy(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Kill the HTTP proxy."""
    nodes.machines["head"].kill_processes("ray::ProxyActor")
    return []


def driver(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Kill the driver; the work starts it again."""
    nodes.desk.kill_processes(_DRIVER)
    return SERVICES


def driver_twice(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Kill the driver, and the next one as soon as it has started."""
    killed = set(nodes.desk.kill_processes(_DRIVER))
    wait_until(lambda: not killed or set(nodes.desk.kill_processes(_DRIVER)) - killed)
    return SERVICES


def worker(nodes: Nodes, rng: random.Random) -> Collection[str]:
    """Kill a whole worker machine and start it again."""
    name = rng.choice(list(WORKERS))
    nodes.machines[name].kill()
    time.sleep(AWAY_S)
    nodes.machines[name].power_on()
    nodes.start_worker(name, WORKERS[name])
    return WORKERS[name]


def head(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Kill the head's machine and start it again."""
    nodes.machines["head"].kill()
    time.sleep(AWAY_S)
    nodes.machines["head"].power_on()
    nodes.start_head()
    return SERVICES
