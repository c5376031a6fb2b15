"""Leases on a folder: exclusive, visible, and gone with their process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from poolbench.errors import BrokerError
from poolbench.queue import Broker, open_leases
from poolbench.queue.leases import FolderLeases

HOLDER = """
import sys, time
from pathlib import Path
from poolbench.queue.leases import FolderLeases
assert FolderLeases(Path(sys.argv[1])).acquire("job") is not None
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def leases(tmp_path: Path) -> FolderLeases:
    return FolderLeases(tmp_path)


def test_a_lease_is_exclusive_until_released(leases: FolderLeases) -> None:
    assert not leases.alive("job")
    lease = leases.acquire("job")
    assert lease is not None
    assert leases.alive("job") and not leases.alive("other")
    assert leases.held(["other", "job", "third"]) == {"job"} and leases.held([]) == set()
    assert leases.acquire("job") is None
    lease.release()
    lease.release()
    assert not leases.alive("job")
    again = leases.acquire("job")
    assert again is not None
    again.release()


def test_a_lease_ends_with_the_block(leases: FolderLeases) -> None:
    lease = leases.acquire("job")
    assert lease is not None
    with lease:
        assert leases.alive("job")
    assert not leases.alive("job")


def test_kill_minus_9_ends_the_lease(leases: FolderLeases) -> None:
    command = [sys.executable, "-c", HOLDER, str(leases.root)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "held"
        assert leases.alive("job")
        assert leases.acquire("job") is None
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        assert not leases.alive("job")
        lease = leases.acquire("job")
        assert lease is not None
        lease.release()
    finally:
        holder.kill()
        holder.wait()


def test_a_forked_child_does_not_keep_the_lease(leases: FolderLeases) -> None:
    lease = leases.acquire("job")
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        assert lease is not None
        assert leases.alive("job")
        lease.release()
        assert not leases.alive("job")
        again = leases.acquire("job")
        assert again is not None
        again.release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_broker_names_its_leases(tmp_path: Path) -> None:
    store = open_leases(Broker(f"filesystem://{tmp_path}"))
    assert isinstance(store, FolderLeases)
    assert store.root == tmp_path / "leases"


def test_leases_on_an_unreachable_redis_are_a_broker_error() -> None:
    leases = open_leases(Broker("redis://127.0.0.1:1/0"))
    with pytest.raises(BrokerError, match="does not answer"):
        leases.acquire("job")
    with pytest.raises(BrokerError, match="does not answer"):
        leases.alive("job")
