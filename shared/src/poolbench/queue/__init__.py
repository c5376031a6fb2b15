"""Work queue: JSON tasks over a folder or Redis, leases that outlive no worker, dead letters."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poolbench.queue.broker import Broker
    from poolbench.queue.client import TaskQueue
    from poolbench.queue.leases import LeaseStore, open_leases

_MODULES = {"Broker": "broker", "LeaseStore": "leases", "TaskQueue": "client", "open_leases": "leases"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: who reads messages alone loads no steps."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
