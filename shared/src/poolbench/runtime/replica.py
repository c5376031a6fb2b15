"""The body of every service's replica: the service, its worker and its HTTP application."""

import ipaddress
import logging
from typing import Any

from poolbench.errors import ConfigError
from poolbench.queue.broker import Broker
from poolbench.queue.leases import open_leases
from poolbench.runtime.about import assigned_gpus
from poolbench.runtime.border import Border, BorderLimits
from poolbench.runtime.service import load_service
from poolbench.runtime.settings import ClusterSettings
from poolbench.runtime.worker import Worker
from poolbench.settings import HttpSettings
from poolbench.statuses import TaskOutcome
from poolbench.storage import open_store, require_conditional_writes
from poolbench.storage.artifacts import Artifacts
from poolbench.telemetry import record_to_ray
from poolbench.telemetry.catalog import GPU_MEMORY_BYTES, GPU_UTILIZATION
from poolbench.telemetry.gpu import gpu_use
from poolbench.telemetry.logs import configure_logging
from poolbench.telemetry.traces import start_tracing

_ANY_PORT = "[::]:0"
_LOG = logging.getLogger("poolbench.task")


def keep_on_loopback() -> None:
    """Let the gRPC server of this replica listen on 127.0.0.1 if its node does; call it before Serve opens the port.

    Ray's own servers follow the node's address. The server for calls from other deployments listens on every interface,
    and Serve has no setting for it. `cluster-up` checks the open ports, which detects a version of Ray in which this
    has no effect.
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
    """One replica of one service; a plain class, so that tests run it without Ray."""

    _adapter: Any = None  # set by Serve's task consumer

    num_running = 16  # HTTP requests at once
    num_waiting = 1000  # HTTP requests that wait beyond those

    def __init__(self, service: str, module: str = "") -> None:
        configure_logging(service)
        keep_on_loopback()
        record_to_ray()
        start_tracing(service)
        self._gpus = assigned_gpus()
        self.settings = ClusterSettings.load()
        self.limits = BorderLimits(self.num_running, self.num_waiting, HttpSettings.load().deadline_s)
        self.service = load_service(service, module)
        store = open_store(self.settings.store_uri, self.settings.restricted_uri)
        require_conditional_writes(store)
        self.worker = Worker(self.service, Artifacts(store), open_leases(Broker(self.settings.broker_url)))

    def run_task(self, task: dict[str, Any], *, attempt: int = 1, final: bool = True) -> TaskOutcome:
        """Execute one task from the queue."""
        return self.worker.run(task, attempt=attempt, final=final)

    def check_health(self) -> None:
        """Raise ConfigError if the consumer has ended; Serve then restarts the replica.

        Serve calls this every few seconds, so the GPUs of this replica are measured here.
        """
        for gpu in gpu_use(self._gpus):
            labels = {"service": self.service.name, "gpu": gpu.index}
            GPU_MEMORY_BYTES.set(gpu.memory_bytes, **labels)
            GPU_UTILIZATION.set(gpu.utilization, **labels)
        if self._adapter is not None and not self._adapter.consuming():
            raise ConfigError(f"the queue consumer of the {self.service.name} has stopped; its log says why")

    def __serve_build_asgi_app__(self) -> Border:
        from poolbench.runtime.http import build_api

        return Border(build_api(self.service, self.settings.token), self.limits)
