"""The interface of a service: handlers of tasks, and routes of HTTP requests."""

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import SERVICES
from poolbench.errors import UnknownNameError
from poolbench.worker.taskio import TaskIO

if TYPE_CHECKING:
    from fastapi import APIRouter

Handler = Callable[[Task, TaskIO], None]


class Service(Protocol):
    """A service's adapter; `poolbench_<name>.service:create()` returns one.

    A service may have a method `holds_state() -> bool`, which returns whether the replica holds data of clients that
    would be lost with the replica. If so, the number of replicas never shrinks. A service may have a method
    `release_memory()`, which unloads models. This method is called while there is no work, and models are loaded again
    on demand. If the attribute `pauses_for_requests` is true, tasks wait between two steps while short requests run.
    Such tasks must not hold a lock that requests need.

    Attributes:
        name: One of `SERVICES`.
        handlers: Handler by task kind, such as `extractor.extract`. One task runs at a time in a replica, but HTTP
            requests may run concurrently. A service must guard data that both use.
    """

    name: str
    handlers: Mapping[str, Handler]

    def routes(self, router: "APIRouter") -> None:
        """Add the HTTP routes of the service. `poolbench.http` adds token check, health, docs and error bodies."""

    def health(self) -> dict[str, Any]:
        """Return details for clients with a valid token, such as loaded models and the number of served requests."""


def load_service(name: str, module: str = "") -> Service:
    """Import a service package, by default `poolbench_<name>.service`. Raise UnknownNameError for another name."""
    if name not in SERVICES:
        raise UnknownNameError("service", name, SERVICES)
    service: Service = importlib.import_module(module or f"poolbench_{name}.service").create()
    return service
