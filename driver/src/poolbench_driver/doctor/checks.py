"""Checks of this machine, and all checks in the order in which one thing needs another."""

import socket
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from poolbench.config import asset_path
from poolbench.errors import ConfigError, PoolbenchError
from poolbench.machine.preflight import SOURCE_CHECKS, Gap, find_gaps, installed_profile, package_sources
from poolbench.queue import Broker
from poolbench.settings import ClusterSettings, state_folder
from poolbench.settings.access import read_cluster
from poolbench.storage import open_store
from poolbench_driver.cluster.services import Services
from poolbench_driver.doctor import cluster
from poolbench_driver.doctor.finding import Finding, Level, checked, free_bytes_at, free_space
from poolbench_driver.doctor.models import model


def examine(output: Path, models: Sequence[str], *, load: bool = False) -> Iterator[Finding]:
    """Run all checks, and yield each finding at once. With `load`, the extractor and the steerer load the models."""
    settings, finding = settings_of()
    if settings is None or settings.store_uri:  # a client of a remote cluster needs no assets and no ports
        yield from assets()
    yield from gaps()
    yield from disks(output, settings)
    if settings is None or settings.store_uri:
        yield from ports()
    yield finding
    if settings is None:
        return
    if settings.store_uri:
        yield from cluster.store(settings)
    if settings.broker_url:
        yield from cluster.broker(settings)
    else:
        yield Finding("queue and object store", Level.NOTE, f"not known here: {settings.http_from} names services only")
    if not settings.http_address:
        yield Finding("services", Level.FAILURE, "the cluster's HTTP address is unknown; set POOLBENCH_HTTP")
        return
    connected = Services(settings)
    yield from cluster.services(connected, _store_time(settings), models)
    for name in models if load else ():
        yield from model(connected, name)


def _store_time(settings: ClusterSettings) -> float | None:
    if not settings.store_uri:
        return None
    try:
        return open_store(settings.store_uri).now_s()
    except PoolbenchError:
        return None


def assets() -> Iterator[Finding]:
    """Check the shipped model and spaCy pipeline."""
    for name in ("demo_lm", "annotator"):
        yield checked(f"asset {name}", partial(asset_path, name))


def gaps() -> Iterator[Finding]:
    """Check whether this machine meets the needs of the services that are installed on it.

    On a machine that only runs a client, yield nothing. In a checkout of the repository, also check the needs of an
    installation.
    """
    if (profile := installed_profile()) is None:
        return
    folder = Path(sys.prefix).parent
    root = folder if (folder / "deploy" / "install.py").exists() else None
    sources = package_sources(folder / ".venv") if root else None
    needs = find_gaps(profile, root, sources=sources, download_bytes=0, installed_bytes=0)
    yield from map(_finding, needs) if needs else [Finding("machine")]


def _finding(gap: Gap) -> Finding:
    level = Level.FAILURE if gap.blocking else Level.WARNING
    # Packages are installed already.
    return Finding(gap.check, Level.NOTE if gap.check in SOURCE_CHECKS else level, f"{gap.message}: {gap.remedy}")


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
    """Check that the local cluster that is recorded here answers."""
    recorded = read_cluster(state_folder())
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
    """Load the settings of the cluster. Return the settings, or None if they cannot be loaded, and the finding."""
    try:
        return ClusterSettings.load(http_only=True), Finding("cluster")
    except ConfigError as error:
        return None, Finding("cluster", Level.FAILURE, str(error))
