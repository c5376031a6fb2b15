"""Checks of the cluster: object store, broker and services."""

import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from poolbench.contracts.wire import SERVICES
from poolbench.errors import PoolbenchError
from poolbench.model_folders.folders import list_folder
from poolbench.queue import Broker, TaskQueue
from poolbench.queue.broker import require_owner
from poolbench.settings import ClusterSettings
from poolbench.storage import Artifacts, open_store, require_conditional_writes
from poolbench.storage.damage import described_damage
from poolbench_driver.cluster.services import Services
from poolbench_driver.doctor.finding import Finding, Level, checked, clock, free_space, other_version, owner_of


def store(settings: ClusterSettings) -> Iterator[Finding]:
    """Check that the object store works, and compare the clock of this machine with the clock of the object store."""
    name = f"object store {settings.store_uri}"
    try:
        artifacts = Artifacts(open_store(settings.store_uri))
        path = f"doctor/{uuid.uuid4().hex}"
        artifacts.store.put(path, bytes(1 << 16))
        artifacts.store.get(path)
        artifacts.store.delete(path)
    except PoolbenchError as error:
        yield Finding(name, Level.FAILURE, str(error))
        return
    yield Finding(name)
    yield checked("conditional writes", partial(require_conditional_writes, artifacts.store))
    yield clock("this machine", time.time() - artifacts.store.now_s())
    if damage := described_damage(artifacts):
        yield Finding("damaged files", Level.NOTE, damage)


def broker(settings: ClusterSettings) -> Iterator[Finding]:
    """Check that the broker answers, accepts our credentials and belongs to this cluster."""
    connection = Broker(settings.broker_url)
    name = f"broker {connection.shown}"
    yield (answers := checked(name, TaskQueue(connection).ping))
    if answers.level is not Level.OK:
        return
    with suppress(PoolbenchError):  # an absent store is a finding of its own
        artifacts = Artifacts(open_store(settings.store_uri))
        owner = owner_of(settings, artifacts)
        yield checked("owner of the broker", partial(require_owner, connection, owner))


#: Services that use a GPU where there is one.
_ON_GPUS = ("extractor", "scorer", "steerer")
Health = dict[str, Any]


def services(connected: Services, now_s: float | None, models: Sequence[str]) -> Iterator[Finding]:
    """Check every service, and ask the extractor whether it can use the models.

    Args:
        connected: The services.
        now_s: Time by the clock of the object store in seconds, or None if it is unknown.
        models: Names of models, in the form that `--model` accepts.
    """
    with ThreadPoolExecutor(len(SERVICES)) as pool:
        answers = dict(zip(SERVICES, pool.map(partial(_ask, connected), SERVICES), strict=True))
    for name, answer in answers.items():
        if isinstance(answer, PoolbenchError):
            yield Finding(name, Level.FAILURE, str(answer))
        else:
            yield Finding(name)
            yield from _about(name, answer.get("replica", {}), now_s)
    if not isinstance(answers["extractor"], PoolbenchError):
        for model in models:
            yield checked(f"model {model}", partial(_describe, connected, model))


def _ask(connected: Services, name: str) -> Health | PoolbenchError:
    try:
        return connected.health(name)
    except PoolbenchError as error:
        return error


def _about(name: str, replica: Health, now_s: float | None) -> Iterator[Finding]:
    """Check the version, clock, disk and GPUs that a replica reports. A replica of another version may report none."""
    if mismatch := other_version(name, {"replica": replica}):
        yield Finding(f"version of the {name}", Level.FAILURE, mismatch)
    if not replica:
        return
    if now_s is not None and (finding := clock(f"the {name}", replica["time_s"] - now_s)).level is not Level.OK:
        yield finding
    if (finding := free_space(f"the {name}", replica["disk_free_bytes"])).level is not Level.OK:
        yield finding
    if name in _ON_GPUS:
        yield _gpus(name, replica["gpus_on_node"], replica["gpus_assigned"])


def _gpus(name: str, on_node: int, assigned: int) -> Finding:
    check = f"GPUs of the {name}"
    if on_node and not assigned:
        message = (
            f"its node has {on_node}, but it got none: start with PROFILE=gpu, or set num_gpus in the configuration"
        )
        return Finding(check, Level.WARNING, message)
    return Finding(check, Level.OK, f"{assigned} of {on_node}" if on_node else "its node has none")


def _describe(connected: Services, model: str) -> None:
    connected.get("extractor", "model", {"model": list_folder(model)})
