"""Start and stop the Ray head, and with it every process of the cluster."""

import contextlib
import ipaddress
import json
import logging
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from deploy.environment import DEFAULTS, FIXED
from deploy.local.state import CLUSTER_ID_VARIABLE, Cluster, free_port
from poolbench.contracts.wire import SERVICES
from poolbench.errors import ConfigError, EndpointError
from poolbench.settings import GateSettings, PlaceSettings

START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 6
REPLICAS_PER_NODE = 16
#: Options of every node.
COMMON = ("--object-store-memory=100000000", "--disable-usage-stats", "--log-color=false")

#: What holds for one machine only: first unless the caller's environment says otherwise, then always.
_LOCAL_DEFAULTS = {
    GateSettings.variable("open_documentation"): "true",  # for a browser, which sends no token; on loopback only
}
_LOCAL = {
    # Without it Ray replaces 127.0.0.1 by an address of the machine, and its servers listen on every interface.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
#: Addresses of other clusters; and tokens, which lie in files that are read again when they change.
_NOT_INHERITED = (
    "RAY_ADDRESS",
    "RAY_AUTH_TOKEN",
    PlaceSettings.variable("token"),
    PlaceSettings.variable("token_next"),
)


def make_private(folder: Path) -> Path:
    """Create a folder for its owner only, or close one to others. Raise ConfigError if the name is taken."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise ConfigError(f"{folder} must be a folder of user {os.getuid()}: remove it, or set TMPDIR to another place")
    folder.chmod(0o700)
    return folder


def exposed(cluster: Cluster) -> list[str]:
    """Return each port of the cluster that other machines can reach, with the process that listens on it."""
    return sorted({line for process in cluster.processes() for line in _exposed_by(process)})


def require_loopback(cluster: Cluster) -> None:
    """Check that every port of the cluster listens on loopback only. Raise ConfigError with those that do not."""
    if ports := exposed(cluster):
        raise ConfigError(
            f"{len(ports)} ports can be reached from other machines: {', '.join(ports)}. A local cluster listens on "
            "loopback only: run `make install`, which brings the pinned version of Ray, `make cluster-down` and "
            "`make cluster-up`"
        )


def _exposed_by(process: psutil.Process) -> list[str]:
    try:
        name = process.name()
        listening = [one for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []
    return [f"{one.laddr.ip}:{one.laddr.port} ({name})" for one in listening if not _is_loopback(one.laddr.ip)]


def _is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def environment(cluster: Cluster, state: Path) -> dict[str, str]:
    """Return the environment of every process of the cluster. Tokens are named by file, never by value."""
    variables = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    return {
        **DEFAULTS,
        **_LOCAL_DEFAULTS,
        **variables,
        **FIXED,
        **_LOCAL,
        "RAY_AUTH_TOKEN_PATH": cluster.ray_token_file,
        PlaceSettings.variable("state"): str(state),
        CLUSTER_ID_VARIABLE: cluster.cluster_id,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }


def start(cluster: Cluster, state: Path) -> None:
    """Start a Ray head and record its process in `cluster`. Raise ConfigError if it ends or does not answer in time."""
    make_private(Path(cluster.ray_temp).parent)  # Ray opens its own folders to everyone
    log = Path(cluster.logs) / "ray.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            _command(cluster),
            env=environment(cluster, state),
            stdout=output,
            stderr=output,
            start_new_session=True,
            umask=0o077,
        )
    cluster.pid, cluster.pid_started = process.pid, psutil.Process(process.pid).create_time()
    deadline = time.monotonic() + START_TIMEOUT_S
    while not answers("127.0.0.1", cluster.ray_port):
        if process.poll() is not None or time.monotonic() > deadline:
            tail = "\n".join(log.read_text().splitlines()[-5:])
            raise ConfigError(f"Ray did not start; the end of {log}:\n{tail}")
        time.sleep(0.1)


def connect(cluster: Cluster, wait_s: float = 0) -> None:
    """Connect this process to a cluster's Ray, whose head may take `wait_s` to start. Raise EndpointError without an
    answer.
    """
    os.environ.update(FIXED | _LOCAL, RAY_AUTH_TOKEN_PATH=cluster.ray_token_file)
    os.environ.pop("RAY_AUTH_TOKEN", None)
    import ray
    import ray.serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    deadline = time.monotonic() + wait_s
    while True:
        try:
            ray.init(address=cluster.ray_address, namespace="serve", **quiet)
            return
        except (ConnectionError, RuntimeError) as error:
            ray.shutdown()
            if time.monotonic() > deadline or not cluster.runs():
                raise EndpointError(f"Ray at {cluster.ray_address} does not answer: {error}") from error
            time.sleep(0.5)


def stop(cluster: Cluster, note: Callable[[str], None]) -> int:
    """End every process of the cluster, remove Ray's temporary folder, and return the number of processes."""
    processes = cluster.processes()
    for process in processes:
        if process.pid == cluster.pid:
            process.terminate()
    _, left = psutil.wait_procs(processes, timeout=STOP_TIMEOUT_S if cluster.runs() else 0)
    left = [*left, *cluster.processes()]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=5)
    if survivors := [process.pid for process in cluster.processes()]:
        note(f"still running: processes {survivors}")
    shutil.rmtree(cluster.ray_temp, ignore_errors=True)
    with contextlib.suppress(OSError):  # it holds something else
        Path(cluster.ray_temp).parent.rmdir()
    return len(processes)


def _command(cluster: Cluster) -> list[str]:
    places = json.dumps(dict.fromkeys(SERVICES, REPLICAS_PER_NODE))
    return [
        str(Path(sys.executable).with_name("ray")),
        "start",
        "--head",
        "--block",
        "--node-ip-address=127.0.0.1",
        f"--port={cluster.ray_port}",
        f"--ray-client-server-port={free_port()}",
        f"--dashboard-agent-listen-port={free_port()}",
        f"--metrics-export-port={cluster.metrics_port}",
        f"--temp-dir={cluster.ray_temp}",
        f"--resources={places}",
        "--num-cpus=2",
        "--include-dashboard=false",
        "--include-log-monitor=false",  # it sends logs of workers to drivers that ask for them; ours do not
        *COMMON,
    ]


def answers(host: str, port: int) -> bool:
    """Return whether the port is open."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False
