"""Disks that are full. Each part has a file system of its own."""

import random
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.servers.nodes import BROKER_FOLDER, Nodes

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
