"""The ports of a local cluster: which of its processes listen, on how many ports, and what for."""

from dataclasses import dataclass

import psutil
from deploy.local.state import Cluster


@dataclass(frozen=True)
class NamedPorts:
    """The ports that one kind of process may open; all of them on loopback."""

    process: str  # part of the command line
    most: int  # ports of one process
    purpose: str


#: docs/security.md has the same table.
NAMED = (
    NamedPorts("gcs/gcs_server", 1, "state of the Ray cluster"),
    NamedPorts("raylet/raylet", 2, "Ray's node manager and object manager"),
    NamedPorts("ray.util.client.server", 1, "Ray clients"),
    NamedPorts("autoscaler/_private/monitor.py", 1, "metrics of Ray's autoscaler"),
    NamedPorts("dashboard/dashboard.py", 1, "metrics of Ray's dashboard process; the dashboard itself is off"),
    NamedPorts("ray::DashboardAgent", 3, "Ray's agent of the node: HTTP, gRPC and metrics"),
    NamedPorts("ray::RuntimeEnvAgent", 1, "environments of Ray's workers"),
    NamedPorts("ray::ServeController", 1, "calls between Ray's processes"),
    NamedPorts("ray::ProxyActor", 2, "the HTTP port of the services; calls between Ray's processes"),
    NamedPorts("ray::ServeReplica:", 2, "requests from the proxy; calls between Ray's processes"),
    NamedPorts("ray::IDLE", 1, "calls between Ray's processes, of a worker without work"),
    NamedPorts("VLLM::", 16, "process groups of the steerer's engine"),
    # setproctitle finds its place from the first variable of the environment, and gives up where that was changed.
    NamedPorts("multiprocessing.spawn", 16, "the same engine, where it could not give itself its name"),
)


def unnamed(cluster: Cluster) -> list[str]:
    """Return each process of the cluster that listens although the table does not name it, or on more ports."""
    return [line for process in cluster.processes() if (line := _unnamed_of(process))]


def _unnamed_of(process: psutil.Process) -> str:
    try:
        command = " ".join(process.cmdline())
        listening = [one for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""
    most = next((named.most for named in NAMED if named.process in command), 0)
    if len(listening) <= most:
        return ""
    ports = ", ".join(f"{one.laddr.ip}:{one.laddr.port}" for one in listening)
    return f"{command.strip()[:200]} listens on {ports}; the table names {most}"
