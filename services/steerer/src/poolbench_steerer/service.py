"""The steerer's adapter to the runtime."""

import atexit
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fastapi import APIRouter

from poolbench.contracts.tasks import Task
from poolbench.errors import ConfigError
from poolbench.pooling.registry import STRATEGIES
from poolbench.settings import ClusterSettings, SteererSettings
from poolbench.storage import Artifacts, open_store
from poolbench.worker.taskio import TaskIO
from poolbench_steerer import tasks
from poolbench_steerer.completions.verbs import CompletionVerbs
from poolbench_steerer.host import EngineHost
from poolbench_steerer.http.named import Named
from poolbench_steerer.http.probes import ServedProbes
from poolbench_steerer.http.served import ServedRecords, ServedVectors
from poolbench_steerer.http.steering import Directions
from poolbench_steerer.http.tokenizer import TokenizerVerbs
from poolbench_steerer.http.vectors import VectorVerbs
from poolbench_steerer.http.verbs import Admission, Verbs


def _open_artifacts() -> Artifacts:
    """Return the artifacts of the cluster's store."""
    return Artifacts(open_store(ClusterSettings.load().store_uri))


class SteererService:
    """Steered generation, continuations and perplexity on one engine."""

    name = "steerer"

    def __init__(self, host: EngineHost, artifacts: Callable[[], Artifacts] = _open_artifacts) -> None:
        self.host = host
        self._directions = Directions(artifacts)
        self._vectors = VectorVerbs(host)
        records = ServedRecords(artifacts)
        self._served, self._probes = ServedVectors(host, records), ServedProbes(host, records)
        self.handlers: dict[str, Callable[[Task, TaskIO], None]] = {
            "steerer.generate": lambda task, io: tasks.generate(self.host, task, io),
            "steerer.complete": lambda task, io: tasks.complete(self.host, task, io),
            "steerer.read": lambda task, io: tasks.read_texts(self.host, task, io),
            "steerer.continue": lambda task, io: tasks.continue_passages(self.host, task, io),
        }
        # The engine is a process of its own; without this it would outlive a replica that ends.
        atexit.register(self.host.close)
        if host.config.eager_start:
            # Serve sends no request to a replica before its constructor returns, so it is ready when its engine is.
            self.host.load()

    def routes(self, router: APIRouter) -> None:
        """Add the verbs for texts, vectors and tokens and, under `v1`, the OpenAI completions API."""
        with suppress(ConfigError):  # of a plug-in: the error of the request that names one of its strategies
            STRATEGIES.all()  # imported here, and not on the event loop by the first request that pools
        admission = Admission(self.host.config.max_pending_texts)
        names = Named(self._directions, self._served, self._probes)
        Verbs(self.host, admission, names).add_to(router)
        self._vectors.add_to(router)
        self._served.add_to(router)
        self._probes.add_to(router)
        TokenizerVerbs(self.host).add_to(router)
        CompletionVerbs(self.host, admission, names, self._served).add_to(router)

    def health(self) -> dict[str, Any]:
        """Return state of the engine."""
        return self.host.health()

    def loaded_model(self) -> str:
        """Return the id of the model that is loaded or being loaded, or "" if there is none."""
        return str(self.host.health().get("model", ""))

    def holds_state(self) -> bool:
        """Return whether clients have registered vectors with this replica, which other replicas do not have."""
        return self._vectors.num_registered > 0

    def release_memory(self) -> None:
        """End the engine if no job uses it. The next job starts a new engine with the registered vectors."""
        self.host.leave()


def create() -> SteererService:
    """Create the service from the environment. Unless eager, the engine starts with the first request."""
    return SteererService(EngineHost(SteererSettings.load()))
