"""What a service is to the runtime: named handlers for tasks, and routes for ad-hoc requests."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import SERVICES
from poolbench.errors import UnknownNameError
from poolbench.runtime.taskio import TaskIO

if TYPE_CHECKING:
    from fastapi import APIRouter

Handler = Callable[[Task, TaskIO], None]


class Service(Protocol):
    """A service's adapter; `poolbench_<name>.service:create()` returns one.

    Attributes:
        name: one of `SERVICES`.
        handlers: handler by task kind, such as `extractor.extract`. One task runs at a time in a replica,
            but HTTP requests may run beside it: a service guards what both use.
    """

    name: str
    handlers: Mapping[str, Handler]

    def routes(self, router: APIRouter) -> None:
        """Adds the service's HTTP verbs; the runtime adds token check, health, docs and error bodies."""

    def health(self) -> dict[str, Any]:
        """Details for holders of the token: what is loaded, how much was served."""


def load_service(name: str, module: str = "") -> Service:
    """Imports a service package and creates its service.

    Args:
        name: one of `SERVICES`.
        module: what to import; by default `poolbench_<name>.service`.

    Raises:
        UnknownNameError: no service has this name.
    """
    if name not in SERVICES:
        raise UnknownNameError("service", name, SERVICES)
    service: Service = importlib.import_module(module or f"poolbench_{name}.service").create()
    return service
