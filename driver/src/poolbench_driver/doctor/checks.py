"""All checks, in the order in which one thing needs another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from poolbench.errors import PoolbenchError
from poolbench.settings import ClusterSettings
from poolbench.storage import open_store
from poolbench_driver.cluster.services import Services
from poolbench_driver.doctor import machine, parts, services
from poolbench_driver.doctor.finding import Finding, Level
from poolbench_driver.doctor.models import model


def examine(output: Path, models: Sequence[str], *, load: bool = False) -> Iterator[Finding]:
    """Yield what each check finds, as it is found; with `load` extractor and steerer load the models."""
    settings, finding = machine.settings_of()
    if settings is None or settings.store_uri:  # a client of a remote cluster needs no assets and no ports
        yield from machine.assets()
    yield from machine.gaps()
    yield from machine.disks(output, settings)
    if settings is None or settings.store_uri:
        yield from machine.ports()
    yield finding
    if settings is None:
        return
    if settings.store_uri:
        yield from parts.store(settings)
    if settings.broker_url:
        yield from parts.broker(settings)
    else:
        yield Finding("queue and object store", Level.NOTE, f"not known here: {settings.http_from} names services only")
    if not settings.http_address:
        yield Finding("services", Level.FAILURE, "the cluster's HTTP address is unknown; set POOLBENCH_HTTP")
        return
    connected = Services(settings)
    yield from services.services(connected, _store_time(settings), models)
    for name in models if load else ():
        yield from model(connected, name)


def _store_time(settings: ClusterSettings) -> float | None:
    if not settings.store_uri:
        return None
    try:
        return open_store(settings.store_uri).now_s()
    except PoolbenchError:
        return None
