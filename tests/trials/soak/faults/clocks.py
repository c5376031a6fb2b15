"""Wall clocks that jump."""

import random
import time
from collections.abc import Collection

from tests.servers.nodes import Nodes
from tests.trials.soak.faults.processes import WORKERS

from poolbench.contracts.wire import SERVICES

_JUMPS_S = (-3600, 3600, 86400)
_WRONG_S = 15.0


def worker_clock(nodes: Nodes, rng: random.Random) -> Collection[str]:
    """Let the clock of a worker be wrong by an hour or a day, then correct it."""
    name = rng.choice(list(WORKERS))
    _jump_and_back(nodes, name, rng)
    return WORKERS[name]


def driver_clock(nodes: Nodes, rng: random.Random) -> Collection[str]:
    """Let the clock of the driver's machine be wrong by an hour or a day, then correct it."""
    _jump_and_back(nodes, "desk", rng)
    return SERVICES


def _jump_and_back(nodes: Nodes, name: str, rng: random.Random) -> None:
    nodes.clocks[name].jump(rng.choice(_JUMPS_S))
    time.sleep(_WRONG_S)
    nodes.clocks[name].jump(0)
