"""Disks that are full or read-only. Each part has a file system of its own."""

import random
import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.servers.nodes import BROKER_FOLDER, Nodes
from tests.trials.soak.faults.processes import AWAY_S
from tests.waiting import wait_until

from poolbench.contracts.wire import SERVICES

_FULL_S = 15.0
#: Sizes of the file systems in bytes, by folder.
SIZES = {"store": 256 * 2**20, BROKER_FOLDER: 64 * 2**20, "ray": 1024 * 2**20, "runs": 64 * 2**20}


def broker_disk_full(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Fill the disk of the broker's log."""
    with full(nodes.folder / BROKER_FOLDER):
        time.sleep(_FULL_S)
    return SERVICES


def ray_disk_full(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Fill the disk of Ray's sessions and logs, of all machines."""
    with full(nodes.folder / "ray"):
        time.sleep(_FULL_S)
    return SERVICES


def runs_disk_full(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Fill the disk of the driver's results."""
    with full(nodes.folder / "runs"):
        time.sleep(_FULL_S)
    return SERVICES


@contextmanager
def full(place: Path) -> Iterator[None]:
    """Fill a file system."""
    filler = place / "filler"
    try:
        for num_bytes in (2**20, 2**12):  # the last page too
            with suppress(OSError), filler.open("ab", buffering=0) as file:
                while file.write(bytes(num_bytes)):
                    pass
        yield
    finally:
        filler.unlink(missing_ok=True)


def store_read_only(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Let nobody write to the store for some seconds."""
    wait_until(lambda: _remounted(nodes.folder / "store", "ro"))  # refused while a file is being written
    time.sleep(AWAY_S)
    wait_until(lambda: _remounted(nodes.folder / "store", "rw"))
    return SERVICES


def store_full(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Fill the file system of the store for some seconds."""
    with full(nodes.folder / "store"):
        time.sleep(AWAY_S)
    return SERVICES


def _remounted(place: Path, mode: str) -> bool:
    command = ["mount", "-o", f"remount,{mode}", str(place)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
