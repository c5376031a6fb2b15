"""Checks of object store and broker: reachable, credentials, conditional writes, clock."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from poolbench.errors import PoolbenchError
from poolbench.queue import Broker, TaskQueue
from poolbench.queue.broker import require_owner
from poolbench.settings import ClusterSettings
from poolbench.storage import Artifacts, open_store, require_conditional_writes
from poolbench.storage.damage import described_damage
from poolbench_driver.doctor.finding import Finding, Level, checked, clock
from poolbench_driver.doctor.fitness import owner_of


def store(settings: ClusterSettings) -> Iterator[Finding]:
    """Check the object store, and the clock of this machine against its clock."""
    name = f"object store {settings.store_uri}"
    try:
        artifacts = Artifacts(open_store(settings.store_uri))
        _write_once(artifacts)
    except PoolbenchError as error:
        yield Finding(name, Level.FAILURE, str(error))
        return
    yield Finding(name)
    yield checked("conditional writes", partial(require_conditional_writes, artifacts.store))
    yield clock("this machine", time.time() - artifacts.store.now_s())
    if damage := described_damage(artifacts):
        yield Finding("damaged files", Level.NOTE, damage)


def broker(settings: ClusterSettings) -> Iterator[Finding]:
    """Check that the broker answers and takes our credentials."""
    connection = Broker(settings.broker_url)
    name = f"broker {connection.shown}"
    yield (answers := checked(name, TaskQueue(connection).ping))
    if answers.level is not Level.OK:
        return
    with suppress(PoolbenchError):  # an absent store is a finding of its own
        artifacts = Artifacts(open_store(settings.store_uri))
        owner = owner_of(settings, artifacts)
        yield checked("owner of the broker", partial(require_owner, connection, owner))


def _write_once(artifacts: Artifacts, folder: str = "doctor") -> None:
    path = f"{folder}/{uuid.uuid4().hex}"
    artifacts.store.put(path, bytes(1 << 16))
    artifacts.store.get(path)
    artifacts.store.delete(path)
