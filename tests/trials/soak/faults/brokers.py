"""Redis that dies, and messages that are not what was sent."""

import random
import shutil
import time
from collections.abc import Collection
from contextlib import suppress

from tests.servers.nodes import BROKER_FOLDER, BROKER_PORT, RAY_STATE_PORT, Nodes
from tests.trials.soak.faults.processes import AWAY_S
from tests.waiting import wait_until

from poolbench.contracts.wire import SERVICES
from poolbench.queue.messages import queue_name

# Each script returns how many messages it touched.
_DUPLICATE = """
local found = redis.call('LRANGE', KEYS[1], 0, 2)
for _, m in ipairs(found) do redis.call('LPUSH', KEYS[1], m) end
return #found
"""
_REVERSE = """
local all = redis.call('LRANGE', KEYS[1], 0, -1)
if #all < 2 then return 0 end
redis.call('DEL', KEYS[1])
for _, m in ipairs(all) do redis.call('LPUSH', KEYS[1], m) end
return #all
"""
_LOSE = "return redis.call('RPOP', KEYS[1]) and 1 or 0"
_MESSAGES_COME_S = 60.0  # a fault waits so long for a queue with messages
_POLL_S = 0.2


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
    """Reverse the order of each queue that holds several messages."""
    return _in_every_queue(nodes, _REVERSE)


def messages_lost(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Delete a message of each queue."""
    return _in_every_queue(nodes, _LOSE)


def several_wait(nodes: Nodes) -> bool:
    """Return whether a queue holds several messages, so that each of the three faults above changes something."""

    def count() -> int:
        return max(nodes.broker().llen(queue_name(name)) for name in SERVICES)

    return nodes.inside(count) > 1


def _in_every_queue(nodes: Nodes, script: str) -> Collection[str]:
    """Run a script on all queues, again until it touches a message; return the services of those messages."""

    def touched() -> Collection[str]:
        broker = nodes.broker()
        return [name for name in SERVICES if broker.eval(script, 1, queue_name(name))]

    with suppress(AssertionError):
        return wait_until(lambda: nodes.inside(touched), _MESSAGES_COME_S, _POLL_S)
    return ()


def _kill(nodes: Nodes, port: int) -> None:
    nodes.desk.kill_processes(f"redis-server {nodes.desk.address}:{port}")


OF_MESSAGES = (messages_duplicated, messages_reversed, messages_lost)
