"""Work queue: JSON tasks over a folder or Redis, leases that outlive no worker, dead letters."""

from poolbench.queue.broker import Broker
from poolbench.queue.client import TaskQueue
from poolbench.queue.leases import LeaseStore, open_leases

__all__ = ["Broker", "LeaseStore", "TaskQueue", "open_leases"]
