"""A connection to a cluster: object store, queue, leases and HTTP, or the records of the store alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NoReturn

from poolbench.contracts.bounds import RECORD_PATTERN, RECORDS_PATTERN
from poolbench.contracts.wire import RUN_CANCEL, RUNS_FOLDER, SERVICES
from poolbench.errors import ConfigError, NotFoundError, PoolbenchError
from poolbench.library.concepts import attach
from poolbench.settings import ClusterSettings
from poolbench.statuses import Code, ServiceState
from poolbench.storage import Artifacts, open_store, store_id
from poolbench.storage.base import ObjectInfo
from poolbench.storage.damage import described_damage
from poolbench_driver.cluster.services import Services, open_services  # noqa: F401

if TYPE_CHECKING:
    from poolbench.queue import LeaseStore, TaskQueue

_SERVICE = "pooler"


class RemoteRecords:
    """ObjectStore over HTTP. Reads records of runs, scorers, activations and concepts, and writes the end of a run.

    Every other operation raises ConfigError, because it needs the object store itself.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self.uri = services.settings.http_address

    def get(self, path: str) -> bytes:
        if not re.fullmatch(RECORD_PATTERN, path):
            self._refuse(path)
        try:
            return self._services.get_bytes(_SERVICE, "record", {"path": path})
        except PoolbenchError as error:
            if error.http_status == 404:
                raise NotFoundError(str(error)) from None
            raise

    def exists(self, path: str) -> bool:
        return any(info.path == path for info in self.list(path))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        yield from (ObjectInfo(**record) for record in self._listed(prefix)["records"])

    def now_s(self, path: str = "") -> float:
        return float(self._listed(path)["now_s"])

    def put(self, path: str, data: bytes, *, if_absent: bool = False) -> bool:
        folder, _, run = path.removesuffix(f"/{RUN_CANCEL}").partition("/")
        if folder != RUNS_FOLDER or not path.endswith(f"/{RUN_CANCEL}"):
            self._refuse(path)
        self._services.post(_SERVICE, "cancel_run", {"run": run})
        return True

    def delete(self, path: str) -> None:
        self._refuse(path)

    def move(self, source: str, target: str) -> bool:
        self._refuse(source)

    def blocked(self, path: str) -> str:
        self._refuse(path)

    def _listed(self, prefix: str) -> dict[str, Any]:
        if not re.fullmatch(RECORDS_PATTERN, prefix):
            self._refuse(prefix)
        return self._services.get(_SERVICE, "records", {"prefix": prefix})

    def _refuse(self, path: str) -> NoReturn:
        raise ConfigError(
            f"this command needs {path or 'all'} of the object store, and {self._services.settings.http_from} has the "
            "address of the services only: set POOLBENCH_STORE and POOLBENCH_BROKER too, or use a machine that has them"
        )


#: How long a status page waits for a service before it reports it as busy.
STATUS_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Session:
    """The parts of the cluster that commands use."""

    settings: ClusterSettings
    artifacts: Artifacts
    queue: TaskQueue
    leases: LeaseStore
    services: Services


def open_session(settings: ClusterSettings | None = None) -> Session:
    """Connect to a cluster, by default the cluster that the environment or the state folder names.

    Raise ConfigError or StoreError if no connection is possible.
    """
    settings = settings or ClusterSettings.load()
    if not (settings.store_uri and settings.broker_url):
        raise settings.lacks_queue()
    from poolbench.queue import Broker, TaskQueue, open_leases  # what only the extra `queue` installs

    broker = Broker(settings.broker_url)
    artifacts = open_artifacts(settings)
    queue = TaskQueue(broker, cache(partial(store_id, artifacts.store)))
    return Session(settings, artifacts, queue, open_leases(broker), Services(settings))


def open_artifacts(settings: ClusterSettings | None = None) -> Artifacts:
    """Connect to the object store alone, and let this process find the concepts that are registered there.

    If only the address of the services is known, read the records that the services give to clients.

    Raise ConfigError or StoreError if no connection is possible.
    """
    settings = settings or ClusterSettings.load(http_only=True)
    store = open_store(settings.store_uri) if settings.store_uri else RemoteRecords(Services(settings))
    attach(store)
    return Artifacts(store)


def try_health(services: Services, service: str) -> str:
    """Return the state of a service in one word, for status pages."""
    try:
        return str(services.health(service, timeout_s=STATUS_TIMEOUT_S).get("status", ServiceState.OK))
    except PoolbenchError as error:
        state_of_code = {Code.UNAUTHORIZED.value: ServiceState.REFUSED, Code.BUSY.value: ServiceState.BUSY}
        return state_of_code.get(error.code, ServiceState.DOWN)


def cluster_state(services: Services) -> dict[str, Any]:
    """Return the state of all queues, the newest dead letters and the damage, as `GET /pooler/cluster` does."""
    settings = services.settings
    if not settings.broker_url:
        return services.get("pooler", "cluster")
    from poolbench.queue import Broker, TaskQueue

    queue = TaskQueue(Broker(settings.broker_url))
    return {
        "queues": [{"service": name, **queue.summary(name)} for name in SERVICES],
        "newest_dead_letters": queue.newest_letters(),
        "damaged": described_damage(open_artifacts(settings)),
    }
