"""A connection to a cluster: object store, queue, leases and HTTP."""

from __future__ import annotations

from dataclasses import dataclass

from poolbench.contracts.wire import ARTIFACTS_FOLDER, SERVICES
from poolbench.errors import ConfigError, PoolbenchError
from poolbench.queue import Broker, LeaseStore, TaskQueue, open_leases
from poolbench.runtime.settings import ClusterSettings
from poolbench.statuses import Code, ServiceState
from poolbench.storage import Artifacts, open_store
from poolbench_driver.cluster.client import Services

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
    broker = Broker(settings.broker_url)
    artifacts = Artifacts(open_store(settings.store_uri, settings.restricted_uri))
    return Session(settings, artifacts, TaskQueue(broker), open_leases(broker), Services(settings))


def check_session(session: Session) -> dict[str, dict[str, object]]:
    """Return each service's health; raise StoreError, BrokerError or EndpointError if a part does not respond."""
    session.artifacts.store.exists(f"{ARTIFACTS_FOLDER}/none")
    session.queue.ping()
    if not session.settings.http_address:
        raise ConfigError("the cluster's HTTP address is unknown; set POOLBENCH_HTTP")
    return {name: session.services.health(name) for name in SERVICES}


def try_health(session: Session, service: str) -> str:
    """Return the state of a service in one word, for status pages."""
    try:
        return str(session.services.health(service, timeout_s=STATUS_TIMEOUT_S).get("status", ServiceState.OK))
    except PoolbenchError as error:
        known = {Code.UNAUTHORIZED.value: ServiceState.REFUSED, Code.BUSY.value: ServiceState.BUSY}
        return known.get(error.code, ServiceState.DOWN)
