"""What is broken, one fault at a time. Each function breaks a part and does what an operator or a supervisor would."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

from tests.servers import redis as redis_server
from tests.servers.nodes import BROKER_PORT, HEAVY, LIGHT, RAY_STATE_PORT, Nodes

from poolbench.contracts.wire import SERVICES
from poolbench.queue.envelope import queue_name

Fault = Callable[[Nodes, random.Random], None]

AWAY_S = 5.0  # how long a part that comes back is away
SLOW_S = 15.0
#: The workers, and what runs there.
_WORKERS = {"first": LIGHT, "second": HEAVY}
_DUPLICATE = "for _, m in ipairs(redis.call('LRANGE', KEYS[1], 0, 2)) do redis.call('LPUSH', KEYS[1], m) end"
_REVERSE = (
    "local all = redis.call('LRANGE', KEYS[1], 0, -1) redis.call('DEL', KEYS[1]) "
    "for _, m in ipairs(all) do redis.call('LPUSH', KEYS[1], m) end"
)
_LOSE = "redis.call('RPOP', KEYS[1])"


def _kill(nodes: Nodes, machine: str, name: str) -> None:
    """End the processes of a machine whose command line has a text."""
    for number, line in nodes.machines[machine].processes().items():
        if name in line:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


def replica(nodes: Nodes, rng: random.Random) -> None:
    """Kill a replica of any service."""
    service = rng.choice(SERVICES)
    for machine in _WORKERS:
        _kill(nodes, machine, f"ServeReplica:{service}:")


def engine(nodes: Nodes, _: random.Random) -> None:
    """Kill the process of vLLM's engine."""
    _kill(nodes, "second", "VLLM::EngineCor")


def proxy(nodes: Nodes, _: random.Random) -> None:
    """Kill the HTTP proxy."""
    _kill(nodes, "head", "ray::ProxyActor")


def driver(nodes: Nodes, _: random.Random) -> None:
    """Kill the driver; the work starts it again."""
    _kill(nodes, "desk", "poolbench-driver")


def worker(nodes: Nodes, rng: random.Random) -> None:
    """Kill a whole worker machine and start it again."""
    name = rng.choice(list(_WORKERS))
    nodes.machines[name].kill()
    time.sleep(AWAY_S)
    nodes.machines[name].power_on()
    nodes.start_worker(name, _WORKERS[name])


def head(nodes: Nodes, _: random.Random) -> None:
    """Kill the head's machine and start it again."""
    nodes.machines["head"].kill()
    time.sleep(AWAY_S)
    nodes.machines["head"].power_on()
    nodes.start_head()


def cable(nodes: Nodes, rng: random.Random) -> None:
    """Cut a worker from the network for some seconds."""
    machine = nodes.machines[rng.choice(list(_WORKERS))]
    machine.connect("down")
    time.sleep(AWAY_S)
    machine.connect("up")


def slow_network(nodes: Nodes, rng: random.Random) -> None:
    """Let a worker send 2 Mbit/s; packets that wait longer than 100 ms are lost."""
    machine = nodes.machines[rng.choice(list(_WORKERS))]
    shape = ("root", "tbf", "rate", "2mbit", "burst", "16kb", "latency", "100ms")
    machine.call(["tc", "qdisc", "add", "dev", "eth0", *shape])
    time.sleep(SLOW_S)
    machine.call(["tc", "qdisc", "del", "dev", "eth0", "root"])


def broker_restarts(nodes: Nodes, _: random.Random) -> None:
    """Kill the broker and start it from its log."""
    _kill(nodes, "desk", f"redis-server {nodes.desk.address}:{BROKER_PORT}")
    time.sleep(AWAY_S)
    nodes.start_redis(BROKER_PORT)


def broker_empty(nodes: Nodes, _: random.Random) -> None:
    """Kill the broker and start it without messages and leases."""
    _kill(nodes, "desk", f"redis-server {nodes.desk.address}:{BROKER_PORT}")
    time.sleep(AWAY_S)
    shutil.rmtree(nodes.folder / f"redis-{BROKER_PORT}")
    nodes.start_redis(BROKER_PORT)


def head_state_restarts(nodes: Nodes, _: random.Random) -> None:
    """Kill the Redis that has the state of Ray's head, and start it from its log."""
    _kill(nodes, "desk", f"redis-server {nodes.desk.address}:{RAY_STATE_PORT}")
    time.sleep(AWAY_S)
    nodes.start_redis(RAY_STATE_PORT)


def messages(nodes: Nodes, rng: random.Random) -> None:
    """Duplicate, reverse or lose messages of every queue."""
    script = rng.choice((_DUPLICATE, _REVERSE, _LOSE))
    server = ["redis-cli", "-h", nodes.desk.address, "-p", str(BROKER_PORT), "--no-auth-warning"]
    for service in SERVICES:
        command = [*server, "-a", redis_server.PASSWORD, "EVAL", script, "1", queue_name(service)]
        nodes.desk.call(command)


def store_read_only(nodes: Nodes, _: random.Random) -> None:
    """Let nobody write to the store for some seconds."""
    _remount(nodes, "ro")
    time.sleep(AWAY_S)
    _remount(nodes, "rw")


def store_full(nodes: Nodes, _: random.Random) -> None:
    """Fill the file system of the store for some seconds."""
    filler = nodes.folder / "store" / "filler"
    with suppress(OSError), filler.open("wb") as file:
        while True:
            file.write(bytes(2**20))
            file.flush()
    time.sleep(AWAY_S)
    filler.unlink()


def _remount(nodes: Nodes, mode: str) -> None:
    place = str(nodes.folder / "store")
    subprocess.run(["mount", "-o", f"remount,{mode}", place], check=True, capture_output=True)


FAULTS: dict[str, Fault] = {
    function.__name__.replace("_", " "): function
    for function in (
        *(replica, engine, proxy, driver, worker, head, cable, slow_network, broker_restarts, broker_empty),
        *(head_state_restarts, messages, store_read_only, store_full),
    )
}
