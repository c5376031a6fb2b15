"""What the soak test breaks. Each fault is a function that breaks a part, and does what a supervisor would do then.

It returns the services whose work it interrupts.
"""

import random
from collections.abc import Callable, Collection, Mapping

from tests.servers.nodes import Nodes
from tests.trials.soak.faults import brokers, disks, machines, processes, s3

Fault = Callable[[Nodes, random.Random], Collection[str]]

_COMMON: tuple[Fault, ...] = (
    *(processes.replica, processes.engine, processes.proxy, processes.driver, processes.driver_twice),
    *(processes.worker, processes.head),
    *(machines.cable, machines.slow_network, machines.lossy_network),
    *(brokers.broker_restarts, brokers.broker_empty, brokers.head_state_restarts),
    *brokers.OF_MESSAGES,
    *(disks.broker_disk_full, disks.ray_disk_full, disks.runs_disk_full),
    *(machines.worker_clock, machines.driver_clock),
)
_FOLDER: tuple[Fault, ...] = (disks.store_read_only, disks.store_full)
_S3: tuple[Fault, ...] = (s3.s3_restarts, s3.s3_slow, s3.s3_errors, s3.s3_read_only, s3.s3_full)


def faults(store: str) -> Mapping[str, Fault]:
    """Return all faults of a cluster whose store is a `folder` or `s3`, by name."""
    own = {"folder": _FOLDER, "s3": _S3}[store]
    return {function.__name__.replace("_", " "): function for function in (*_COMMON, *own)}
