"""Queue and leases on a real Redis server."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.servers import redis as redis_server
from tests.servers.stranger import strangers
from tests.waiting import wait_until

from poolbench.errors import BrokerError
from poolbench.queue import Broker, TaskQueue, open_leases
from poolbench.queue.leases import RedisLeases
from poolbench.queue.messages import KEPT_BYTES, MAX_MESSAGE_BYTES

pytestmark = [
    pytest.mark.lane(name="brokers"),
    pytest.mark.skipif(not redis_server.available(), reason="needs the Debian package redis-server"),
]

HOLDER = """
import sys, time
from poolbench.queue.leases import RedisLeases
assert RedisLeases(sys.argv[1], ttl_s=4).acquire("job") is not None
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server.serve(Path(tmp_path_factory.mktemp("redis"))) as address:
        yield address


def test_an_observer_keeps_the_start_of_what_is_too_large(url: str) -> None:
    queue = TaskQueue(Broker(url))
    redis.Redis.from_url(url).lpush("poolbench-scorer", b"x" * (MAX_MESSAGE_BYTES + 1))
    (found,) = queue.misunderstood("scorer")
    assert (len(found.raw), found.num_bytes) == (KEPT_BYTES, MAX_MESSAGE_BYTES + 1)
    assert queue.purge("scorer") == 1


def test_without_the_password_nobody_gets_anything(url: str) -> None:
    with pytest.raises(BrokerError) as caught:
        TaskQueue(Broker(url.replace(redis_server.PASSWORD, "wrong"))).ping()
    assert "wrong@" not in str(caught.value)
    # Without the password, with a wrong one, and as an unknown user.
    assert strangers(url) == []


def test_a_lease_is_renewed_while_held_and_exclusive(url: str) -> None:
    leases = RedisLeases(url, ttl_s=3.0)
    lease = leases.acquire("renewed")
    assert lease is not None
    time.sleep(2 * 3.0)
    assert leases.alive("renewed") and leases.held(["renewed", "other"]) == {"renewed"}
    assert open_leases(Broker(url)).acquire("renewed") is None
    lease.release()
    assert not leases.alive("renewed")


def test_a_killed_holder_loses_the_lease_within_its_time(url: str) -> None:
    leases = RedisLeases(url)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, url], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "held"
        assert leases.alive("job")
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        wait_until(lambda: not leases.alive("job"))
    finally:
        holder.kill()
        holder.wait()
