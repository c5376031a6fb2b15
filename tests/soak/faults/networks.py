"""Networks that fail."""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from tests.servers.machines import Machine
from tests.servers.nodes import Nodes
from tests.soak.faults.processes import AWAY_S, WORKERS

_SLOW_S = 15.0


def cable(nodes: Nodes, rng: random.Random) -> Collection[str]:
    """Cut a worker from the network for some seconds."""
    name = rng.choice(list(WORKERS))
    nodes.machines[name].connect("down")
    time.sleep(AWAY_S)
    nodes.machines[name].connect("up")
    return WORKERS[name]


def slow_network(nodes: Nodes, rng: random.Random) -> Collection[str]:
    """Let a worker send 2 Mbit/s; packets that wait longer than 100 ms are lost."""
    name = rng.choice(list(WORKERS))
    with _shaped(nodes.machines[name], "tbf", "rate", "2mbit", "burst", "16kb", "latency", "100ms"):
        time.sleep(_SLOW_S)
    return WORKERS[name]


def lossy_network(nodes: Nodes, rng: random.Random) -> Collection[str]:
    """Delay what a worker sends by 50 to 150 ms, lose 5 % of the packets, duplicate 1 %, and change their order."""
    name = rng.choice(list(WORKERS))
    loss = ("loss", "5%", "duplicate", "1%", "reorder", "10%")
    with _shaped(nodes.machines[name], "netem", "delay", "100ms", "50ms", *loss):
        time.sleep(_SLOW_S)
    return WORKERS[name]


@contextmanager
def _shaped(machine: Machine, *shape: str) -> Iterator[None]:
    added = machine.call(["tc", "qdisc", "add", "dev", "eth0", "root", *shape])
    assert added.returncode == 0, added.stderr
    yield
    machine.call(["tc", "qdisc", "del", "dev", "eth0", "root"])
