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

    It may have a method `holds_state() -> bool`: whether the replica holds what clients sent it, and what would be lost
    with it. The number of replicas then never shrinks. It may have a method `release_memory()`, which unloads models.
    That is called without work, and models are loaded again on demand. With an attribute `pauses_for_requests` that is
    true, tasks wait between two steps while short requests run; they must not hold a lock that requests need.

    Attributes:
        name: One of `SERVICES`.
        handlers: Handler by task kind, such as `extractor.extract`. One task runs at a time in a replica, but HTTP
            requests may run beside it: a service guards what both use.
    """

    name: str
    handlers: Mapping[str, Handler]

    def routes(self, router: "APIRouter") -> None:
        """Add the service's HTTP verbs; `poolbench.http` adds token check, health, docs and error bodies."""

    def health(self) -> dict[str, Any]:
        """Return details for holders of the token: what is loaded, how much was served."""


def load_service(name: str, module: str = "") -> Service:
    """Import a service package, by default `poolbench_<name>.service`. Raise UnknownNameError for another name."""
    if name not in SERVICES:
        raise UnknownNameError("service", name, SERVICES)
    service: Service = importlib.import_module(module or f"poolbench_{name}.service").create()
    return service
