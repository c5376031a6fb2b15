"""A folder store on a file system that is full, or read-only."""

import random
import subprocess
import time
from collections.abc import Collection
from pathlib import Path

from tests.servers.nodes import Nodes
from tests.trials.soak.faults.disks import full
from tests.trials.soak.faults.processes import AWAY_S
from tests.waiting import wait_until

from poolbench.contracts.wire import SERVICES


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
