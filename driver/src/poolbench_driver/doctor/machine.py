"""Checks of this machine: assets, free disk, ports."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from poolbench.config import asset_path
from poolbench.errors import ConfigError
from poolbench.queue import Broker
from poolbench.settings import ClusterSettings, PlaceSettings, state_folder
from poolbench.settings.access import read_cluster
from poolbench_driver.doctor.finding import Finding, Level, checked, free_bytes_at, free_space

_USUAL_PORT = 8000


def assets() -> Iterator[Finding]:
    """Check the shipped model and spaCy pipeline."""
    for name in ("demo_lm", "annotator"):
        yield checked(f"asset {name}", partial(asset_path, name))


def disks(output: Path, settings: ClusterSettings | None) -> Iterator[Finding]:
    """Check the free space of the folders that this machine writes to."""
    folders = {"runs": output.absolute()}
    if settings is not None:
        if settings.store_uri and "://" not in settings.store_uri:
            folders["object store"] = Path(settings.store_uri)
        if settings.broker_url and (broker := Broker(settings.broker_url)).is_folder:
            folders["queue"] = broker.folder
    for name, folder in folders.items():
        yield free_space(f"{name} ({folder})", free_bytes_at(folder))


def ports() -> Iterator[Finding]:
    """Check the ports of the local cluster that is recorded here; without one, the port that it would take."""
    given, recorded = PlaceSettings.load(), read_cluster(state_folder())
    if recorded:
        yield from _answering(recorded)
    elif not given.http:
        port = given.http_port or _USUAL_PORT
        taken = f"another program uses it; `cluster-up` takes a free one, or set {given.variable('http_port')}"
        yield Finding(f"port {port}", Level.NOTE, taken) if _answers("127.0.0.1", port) else Finding(f"port {port}")


def _answering(recorded: dict[str, Any]) -> Iterator[Finding]:
    for name, field, level in (("Ray", "ray_port", Level.FAILURE), ("metrics", "metrics_port", Level.WARNING)):
        port = int(recorded.get(field, 0))
        if not port:
            continue
        answers = _answers("127.0.0.1", port)
        remedy = "nothing answers; `make cluster-up` repairs the cluster"
        yield Finding(f"port {port} ({name})", Level.OK if answers else level, "" if answers else remedy)


def _answers(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex((host, port)) == 0


def settings_of() -> tuple[ClusterSettings | None, Finding]:
    """Return the settings of the cluster, if there is one."""
    try:
        return ClusterSettings.load(http_only=True), Finding("cluster")
    except ConfigError as error:
        return None, Finding("cluster", Level.FAILURE, str(error))
