"""Work queue: JSON tasks over a folder or Redis, leases that outlive no worker, dead letters."""

from poolbench.queue.broker import Broker, queue_name
from poolbench.queue.client import DeadLetter, TaskQueue
from poolbench.queue.leases import FolderLeases, Lease, LeaseStore, RedisLeases, open_leases

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
