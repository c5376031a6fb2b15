"""The body of every service's replica: the service, its worker and its HTTP application."""

import ipaddress
import logging
from contextlib import nullcontext
from typing import Any

from poolbench.errors import BrokerError, ConfigError
from poolbench.http.border import Border, BorderLimits
from poolbench.http.tokens import Tokens
from poolbench.library.concepts import attach
from poolbench.machine.gpu import shared_gpu
from poolbench.machine.sharing import folder_ids, require_shared
from poolbench.queue.affinity import Affinity
from poolbench.queue.broker import Broker, Owner, require_owner
from poolbench.queue.leases import open_leases
from poolbench.runtime.scaling import HOLDS_STATE, REQUESTS, TASKS_IN_WORK
from poolbench.settings import ClusterSettings, HttpSettings
from poolbench.statuses import TaskOutcome
from poolbench.storage import open_store, require_conditional_writes, store_id
from poolbench.storage.artifacts import Artifacts
from poolbench.telemetry import record_to_ray
from poolbench.telemetry.logs import configure_logging
from poolbench.telemetry.traces import start_tracing
from poolbench.worker.service import load_service
from poolbench.worker.worker import Sender, Worker

_ANY_PORT = "[::]:0"
_LOG = logging.getLogger("poolbench.task")


def keep_on_loopback() -> None:
    """Let the gRPC server of this replica listen on 127.0.0.1 if its node does.

    Call this function before Serve opens the port. Ray's own servers follow the node's address, but the server for
    calls from other deployments listens on every interface, and Serve has no setting for this. `cluster-up` checks the
    open ports, and so detects a version of Ray in which this function has no effect.
    """
    import ray

    if not ray.is_initialized() or not ipaddress.ip_address(ray.util.get_node_ip_address()).is_loopback:
        return
    from ray.serve._private import replica

    original = getattr(replica, "add_port_to_grpc_server", None)
    if original is None:
        _LOG.error("Ray %s: the port of this replica could not be kept on loopback", ray.__version__)
        return

    def add_loopback_port(server: Any, address: str) -> Any:
        return original(server, "127.0.0.1:0" if address == _ANY_PORT else address)

    replica.add_port_to_grpc_server = add_loopback_port


class Replica:
    """One replica of a service. It is a plain class, so that tests can run it without Ray."""

    _adapter: Any = None  # set by Serve's task consumer

    num_running = 16  # HTTP requests at once
    num_waiting = 1000  # HTTP requests that wait beyond those

    def __init__(self, service: str, module: str = "", folders: dict[str, str] | None = None) -> None:
        """Load the service; `folders` has the ids of the folders that this node must share with the others."""
        configure_logging(service)
        keep_on_loopback()
        record_to_ray()
        start_tracing(service)
        self.settings = ClusterSettings.load()
        require_shared(self.settings, folders or {})
        self.limits = BorderLimits(self.num_running, self.num_waiting, HttpSettings.load().deadline_s)
        self.service = load_service(service, module)
        store = open_store(self.settings.store_uri)
        require_conditional_writes(store)
        attach(store)
        own_id, leases = store_id(store), open_leases(Broker(self.settings.broker_url))
        try:
            require_owner(Broker(self.settings.broker_url), Owner(store_id=own_id, store_uri=self.settings.store_uri))
        except BrokerError as error:  # it is waited for: the consumer compares the store of each task too
            _LOG.warning("%s", error)
        self.worker = Worker(self.service, Artifacts(store), leases, own_id)
        self._border: Border | None = None
        self._shared_gpu = shared_gpu(service)
        release_memory = getattr(self.service, "release_memory", None)
        if release_memory is not None and self._shared_gpu is not None:
            self._shared_gpu.leave_when_idle(self.is_busy, release_memory)

    def is_busy(self) -> bool:
        """Return whether a task is in work or a verb in progress."""
        return self.worker.num_in_work > 0 or (self._border is not None and self._border.load.num > 0)

    def run_task(
        self, task: dict[str, Any], *, attempt: int = 1, final: bool = True, sender: Sender | None = None
    ) -> TaskOutcome:
        """Run a task from the queue."""
        with self._shared_gpu.working() if self._shared_gpu is not None else nullcontext():
            return self.worker.run(task, attempt=attempt, final=final, sender=sender)

    def affinity(self) -> Affinity | None:
        """Return the rule by which this replica chooses among waiting tasks.

        Return None if the service has no language model and shares no GPU.
        """
        loaded = getattr(self.service, "loaded_model", None)
        if self._shared_gpu is not None:
            return Affinity(loaded or (lambda: ""), crowded=self._shared_gpu.others_work)
        return None if loaded is None else Affinity(loaded)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the statistics of this replica that Serve records for `QueueLengthPolicy`."""
        holds_state = getattr(self.service, "holds_state", None)
        return {
            TASKS_IN_WORK: float(self.worker.num_in_work),
            REQUESTS: 0.0 if self._border is None else self._border.load.take_mean(),
            HOLDS_STATE: float(holds_state is not None and holds_state()),
        }

    def check_health(self) -> None:
        """Raise ConfigError if the queue consumer has stopped. Serve then restarts the replica."""
        if self._adapter is not None and not self._adapter.consuming():
            raise ConfigError(f"the queue consumer of the {self.service.name} has stopped; its log says why")

    def __serve_build_asgi_app__(self) -> Border:
        from poolbench.http.api import build_api

        api = build_api(self.service, Tokens.of_cluster(), folder_ids(self.settings))
        self._border = Border(api, self.limits)
        if getattr(self.service, "pauses_for_requests", False):
            self.worker.pause = self._border.pause_for_requests
        return self._border
