"""Redis that dies, and messages that are not what was sent."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Collection

from tests.servers.nodes import BROKER_FOLDER, BROKER_PORT, RAY_STATE_PORT, Nodes
from tests.soak.faults.processes import AWAY_S

from poolbench.contracts.wire import SERVICES
from poolbench.queue.envelope import queue_name

_DUPLICATE = "for _, m in ipairs(redis.call('LRANGE', KEYS[1], 0, 2)) do redis.call('LPUSH', KEYS[1], m) end"
_REVERSE = (
    "local all = redis.call('LRANGE', KEYS[1], 0, -1) redis.call('DEL', KEYS[1]) "
    "for _, m in ipairs(all) do redis.call('LPUSH', KEYS[1], m) end"
)
_LOSE = "redis.call('RPOP', KEYS[1])"


def broker_restarts(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Kill the broker and start it from its log."""
    _kill(nodes, BROKER_PORT)
    time.sleep(AWAY_S)
    nodes.start_redis(BROKER_PORT)
    return SERVICES


def broker_empty(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Kill the broker and start it without messages and leases."""
    _kill(nodes, BROKER_PORT)
    time.sleep(AWAY_S)
    for place in (nodes.folder / BROKER_FOLDER).iterdir():
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    nodes.start_redis(BROKER_PORT)
    return SERVICES


def head_state_restarts(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Kill the Redis that has the state of Ray's head, and start it from its log."""
    _kill(nodes, RAY_STATE_PORT)
    time.sleep(AWAY_S)
    nodes.start_redis(RAY_STATE_PORT)
    return SERVICES


def messages_duplicated(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Send up to three messages of each queue a second time."""
    return _in_every_queue(nodes, _DUPLICATE)


def messages_reversed(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Reverse the order of each queue."""
    return _in_every_queue(nodes, _REVERSE)


def messages_lost(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Delete a message of each queue."""
    return _in_every_queue(nodes, _LOSE)


def _in_every_queue(nodes: Nodes, script: str) -> Collection[str]:
    def run() -> None:
        for service in SERVICES:
            nodes.broker().eval(script, 1, queue_name(service))

    nodes.inside(run)
    return SERVICES


def _kill(nodes: Nodes, port: int) -> None:
    nodes.desk.kill_processes(f"redis-server {nodes.desk.address}:{port}")
