"""Work queue: JSON tasks over a folder or Redis, leases that outlive no worker, dead letters."""

from poolbench.queue.broker import Broker
from poolbench.queue.client import TaskQueue
from poolbench.queue.leases import FolderLeases, Lease, LeaseStore, RedisLeases, open_leases
from poolbench.queue.letters import DeadLetter
from poolbench.queue.names import queue_name

__all__ = [
    "Broker",
    "DeadLetter",
    "FolderLeases",
    "Lease",
    "LeaseStore",
    "RedisLeases",
    "TaskQueue",
    "open_leases",
    "queue_name",
]
