"""A broker that is away when a task ends: the consumer goes on with the next one once the broker is back."""

import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from deploy.local.state import free_port
from tests.servers import redis as redis_server
from tests.servers.consuming import consuming
from tests.waiting import wait_until

from poolbench.contracts.tasks import Task
from poolbench.queue import Broker, TaskQueue
from poolbench.storage import Artifacts, open_store

pytestmark = [
    pytest.mark.lane(name="brokers"),
    pytest.mark.skipif(not redis_server.available(), reason="needs the Debian package redis-server"),
]


def _task(kind: str, value: int, **params: str) -> Task:
    return Task(kind=kind, params={"value": value, **params}, outputs={"out": f"prober.echo.{value}"})


@pytest.mark.parametrize("kind", ["prober.hold", "prober.fail"])
def test_a_broker_that_is_away_when_a_task_ends_gets_a_new_connection(tmp_path: Path, kind: str) -> None:
    port, log = free_port(), tmp_path / "consumer.log"
    url = f"redis://:{redis_server.PASSWORD}@127.0.0.1:{port}/0"
    artifacts, queue = Artifacts(open_store(str(tmp_path / "store"))), TaskQueue(Broker(url))
    with ExitStack() as stack:
        broker = _start_redis(stack, tmp_path, port)
        consumer = stack.enter_context(consuming(url, tmp_path / "store", log))
        queue.send(_task(kind, 1, until=str(tmp_path / "end")))
        wait_until(lambda: kind in log.read_text())
        broker.kill()
        broker.wait()
        (tmp_path / "end").touch()
        wait_until(lambda: "does not answer" in log.read_text())
        _start_redis(stack, tmp_path, port)
        queue.send(_task("prober.echo", 2))
        wait_until(lambda: artifacts.exists("prober.echo.2"))
        assert artifacts.exists("prober.echo.1") is (kind == "prober.hold") and consumer.poll() is None


def _start_redis(stack: ExitStack, folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Start a server that keeps a log of its data."""
    command = redis_server.command(folder, "127.0.0.1", port, {"appendonly": "yes"})
    with (folder / "redis.log").open("ab") as log:
        server = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
    stack.callback(server.kill)
    client = redis.Redis.from_url(f"redis://:{redis_server.PASSWORD}@127.0.0.1:{port}/0")

    def answers() -> bool:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False

    wait_until(answers)
    return server
