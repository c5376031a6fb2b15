"""The exposure of a local cluster: the addresses that its processes listen on, and the modes of its folders."""

import ipaddress
import os
import stat
from pathlib import Path

import psutil

from deploy.local.state import Cluster
from poolbench.errors import ConfigError


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
