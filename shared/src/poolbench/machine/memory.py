"""The memory limit of one replica, and what happens beyond it.

On a machine without GPUs the kernel refuses further allocations (RLIMIT_DATA), so the request or task that asked for
them fails with a MemoryError and the replica lives on. CUDA reserves address space far beyond what it uses, and so
does vLLM, whose engine is a process of its own. On a machine with GPUs, and for the steerer everywhere, a thread
watches resident memory instead and ends the largest process of the replica, which is then restarted.
"""

import logging
import math
import os
import resource
import signal
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

import psutil

from poolbench.contracts.wire import SERVICES
from poolbench.machine.preflight import memory_bytes
from poolbench.settings import MemorySettings

_LOG = logging.getLogger("poolbench.memory")
_GIB = 2**30

#: Parts of that memory by service, from what a run was seen to need.
SHARES = {"steerer": 8, "scorer": 5, "extractor": 4, "pooler": 3, "prober": 3}
#: Left to Ray, the system and whatever runs beside it: a share, and at least so many bytes.
_RESERVE, _LEAST_RESERVE = 0.15, 2 * _GIB
#: What PyTorch and its like map and never touch: 1.3 to 1.4 GiB in each service. The kernel's limit counts it.
_NEVER_TOUCHED = int(1.5 * _GIB)
_GPU = Path("/dev/nvidiactl")
_WATCH_S, _LOOK_FOR_CHILDREN_S = 0.5, 5.0

OUT_OF_MEMORY = (
    "the request does not fit into the memory that a replica of this service may use; send less at a time, or let the "
    f"operator raise {MemorySettings.variable('memory_gib')}_<SERVICE>"
)
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed", "cannot allocate")


def hides_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of FastAPI that blames the request body (400) was in fact caused by a lack of memory."""
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out, on a device or on the host.

    Libraries report this differently.
    """
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and any(phrase in str(error).lower() for phrase in _OUT_OF_MEMORY)


def limit_memory(service: str, services: Collection[str], num_replicas: int) -> None:
    """Limit the memory of this process and its children. `services` are the services that share the machine."""
    settings = MemorySettings.load()
    limit = memory_limit(service, services, num_replicas, settings)
    if limit is None:
        return
    watched = service == "steerer" or _GPU.exists()
    _LOG.info("%s: %.1f GiB of memory, %s", service, limit / _GIB, "watched" if watched else "enforced by the kernel")
    if watched:
        threading.Thread(target=_watch, args=(limit,), name="memory-watchdog", daemon=True).start()
    else:
        if _own_gib(settings, service) is None:  # a setting is taken as it is
            limit += _NEVER_TOUCHED
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))


def memory_limit(
    service: str, services: Collection[str], num_replicas: int, settings: MemorySettings, machine: int = 0
) -> int | None:
    """Return the bytes that each of `num_replicas` replicas may use, or None for no limit.

    `services` share the machine. The setting of the service overrides the derived limit. Without this setting, the
    setting of all services does. `machine` is by default the memory of this machine, or of its container.
    """
    service_gib = _own_gib(settings, service)
    if service_gib is not None:
        return int(service_gib * _GIB) or None
    if settings.memory_gib == 0:
        return None
    if settings.memory_gib is not None:
        total = int(settings.memory_gib * _GIB)
    else:
        machine = machine or memory_bytes()
        total = machine - max(int(_RESERVE * machine), min(_LEAST_RESERVE, machine // 2))
    share = SHARES[service] / sum(SHARES[name] for name in {service, *services})
    return int(total * share / max(1, num_replicas))


def held_bytes(pid: int) -> int:
    """Return the resident memory of a process that the kernel cannot take back: neither files nor shared libraries."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def _own_gib(settings: MemorySettings, service: str) -> float | None:
    return cast(float | None, getattr(settings, f"memory_gib_{service}"))


def _watch(limit: int) -> None:
    """Watch this process and its children for as long as it lives."""
    looked_s, processes = float("-inf"), [os.getpid()]
    while True:
        if time.monotonic() - looked_s > _LOOK_FOR_CHILDREN_S:
            looked_s = time.monotonic()
            processes = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
        held = {pid: held_bytes(pid) for pid in processes}
        if sum(held.values()) > limit:
            _end_largest(held, limit)
            looked_s = float("-inf")
        time.sleep(_WATCH_S)


def _end_largest(held: Mapping[int, int], limit: int) -> None:
    """End the largest process: the steerer restarts its engine, and Serve a replica."""
    largest = max(held, key=lambda pid: held[pid])
    usage = f"{sum(held.values()) / _GIB:.1f} GiB held by {len(held)} processes, above the limit of {limit / _GIB:.1f}"
    _LOG.error("%s: process %d, which holds %.1f, is ended", usage, largest, held[largest] / _GIB)
    try:
        os.kill(largest, signal.SIGKILL)
    except ProcessLookupError:
        return


def limit_replica(service: str, num_replicas: int) -> None:
    """Limit the memory of this replica to its share of the machine.

    `num_replicas` is the number on all nodes together.
    """
    import ray

    node_id = ray.get_runtime_context().get_node_id()
    offers = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    shared = MemorySettings.load().shared_machine
    limit_memory(service, *neighbours(service, num_replicas, node_id, offers, shared=shared))


def neighbours(
    service: str, num_replicas: int, node_id: str, offers: Mapping[str, Mapping[str, Any]], *, shared: bool
) -> tuple[list[str], int]:
    """Return the services on a replica's node, and the largest number of replicas that its own service has there.

    Nodes offer places for services as Ray resources with the services' names. `shared` tells that other nodes run on
    the same machine.
    """
    nodes = sum(1 for resources in offers.values() if resources.get(service))
    here = [name for name in SERVICES if offers.get(node_id, {}).get(name)]
    replicas = num_replicas if shared else math.ceil(num_replicas / max(1, nodes))
    # Nodes may still join for replicas to come; a node never holds more of them than it has places.
    places = math.floor(offers.get(node_id, {}).get(service, 0))
    replicas = replicas if shared or not places else min(replicas, places)
    return (list(SERVICES) if shared or not here else here), replicas
