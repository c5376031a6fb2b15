"""A connection to a cluster: object store, queue, leases and HTTP, or the records of the store alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from poolbench.errors import PoolbenchError
from poolbench.library import attach
from poolbench.settings import ClusterSettings
from poolbench.statuses import Code, ServiceState
from poolbench.storage import Artifacts, open_store, store_id
from poolbench_driver.cluster.records import RemoteRecords
from poolbench_driver.cluster.services import Services

if TYPE_CHECKING:
    from poolbench.queue import LeaseStore, TaskQueue


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


def open_session() -> Session:
    """Connect to the cluster of the environment or the state folder; raise ConfigError or StoreError if it fails."""
    settings = ClusterSettings.load()
    from poolbench.queue import Broker, TaskQueue, open_leases  # what only the extra `queue` installs

    broker = Broker(settings.broker_url)
    artifacts = open_artifacts(settings)
    queue = TaskQueue(broker, cache(partial(store_id, artifacts.store)))
    return Session(settings, artifacts, queue, open_leases(broker), Services(settings))


def open_services() -> Services:
    """Return the services of the cluster; raise ConfigError if nothing says where they are."""
    return Services(ClusterSettings.load(http_only=True))


def open_artifacts(settings: ClusterSettings | None = None) -> Artifacts:
    """Connect to the object store alone, and let this process find the concepts that are registered there.

    Where only the address of the services is known, these are the records that they give to clients.

    Raise ConfigError or StoreError if it fails.
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
