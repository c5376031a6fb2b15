"""Networks that fail, and wall clocks that jump."""

import random
import time
from collections.abc import Collection

from tests.servers.machines import Machine
from tests.servers.nodes import Nodes
from tests.trials.soak.faults.processes import AWAY_S, WORKERS

from poolbench.contracts.wire import SERVICES

_SLOW_S = 15.0
_JUMPS_S = (-3600, 3600, 86400)
_WRONG_S = 15.0


def cable(nodes: Nodes, rng: random.Random) -> Collection[str]:
    """Cut a worker from the network for some seconds."""
    name = rng.choice(list(WORKERS))
    nodes.machines[name].connect("down")
    time.sleep(AWAY_S)
    nodes.machines[name].connect("up")
    return WORKERS[name]


def slow_network(nodes: Nodes, rng: random.Random) -> Collection[str]:
    """Let a worker send 2 Mbit/s; packets wait up to 100 ms, and are lost after that."""
    name = rng.choice(list(WORKERS))
    shape = ("tbf", "rate", "2mbit", "burst", "16kb", "latency", "100ms")
    _run(nodes.machines[name], "tc", "qdisc", "add", "dev", "eth0", "root", *shape)
    time.sleep(_SLOW_S)
    _run(nodes.machines[name], "tc", "qdisc", "del", "dev", "eth0", "root")
    return WORKERS[name]


def lossy_network(nodes: Nodes, rng: random.Random) -> Collection[str]:
    """Lose 5 % of the packets from and to a worker."""
    name = rng.choice(list(WORKERS))
    rules = [(chain, "-m", "statistic", "--mode", "random", "--probability", "0.05") for chain in ("INPUT", "OUTPUT")]
    for rule in rules:
        _run(nodes.machines[name], "iptables", "-A", *rule, "-j", "DROP")
    time.sleep(_SLOW_S)
    _run(nodes.machines[name], "iptables", "-F")
    return WORKERS[name]


def _run(machine: Machine, *command: str) -> None:
    done = machine.call(command)
    assert done.returncode == 0, done.stderr


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
