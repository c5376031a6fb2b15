"""The steerer as the runtime sees it."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from poolbench_steerer import tasks
from poolbench_steerer.config import SteererConfig
from poolbench_steerer.host import EngineHost
from poolbench_steerer.routes import Verbs

if TYPE_CHECKING:
    from fastapi import APIRouter

    from poolbench.contracts.tasks import Task
    from poolbench.runtime.taskio import TaskIO


class SteererService:
    """Steered generation, continuations and perplexity on one engine."""

    name = "steerer"

    def __init__(self, config: SteererConfig) -> None:
        self.host = EngineHost(config)
        self.handlers: dict[str, Callable[[Task, TaskIO], None]] = {
            "steerer.generate": lambda task, io: tasks.generate(self.host, task, io),
            "steerer.continue": lambda task, io: tasks.continue_passages(self.host, task, io),
        }
        # The engine is a process of its own; without this it would outlive a replica that ends.
        atexit.register(self.host.close)
        if config.eager_start:
            self.host.start_loading()

    def routes(self, router: APIRouter) -> None:
        """Adds ``vectors``, ``generate`` and ``perplexity``."""
        Verbs(self.host).add_to(router)

    def health(self) -> dict[str, Any]:
        """State of the engine."""
        return self.host.health()


def create() -> SteererService:
    """The service, configured from the environment; the engine starts with the first request unless eager."""
    return SteererService(SteererConfig.from_environment())
