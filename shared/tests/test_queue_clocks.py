"""Retries between workers whose clocks differ, on a real Redis server."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.poison import echo
from tests.servers import clocks
from tests.servers import redis as redis_server
from tests.servers.consuming import consuming
from tests.waiting import wait_until

from poolbench.contracts.wire import failure_path
from poolbench.queue import Broker, TaskQueue
from poolbench.queue.messages import MAX_RETRIES, Message
from poolbench.storage import Artifacts, open_store

CLOCKS = (3600, -3600)
#: Each delivery goes to either of two consumers, so some retries reach the one with the other clock.
AWAY = [echo(number, "prober.away") for number in range(6)]

pytestmark = [
    pytest.mark.lane(name="brokers"),
    pytest.mark.skipif(not redis_server.available(), reason="needs the Debian package redis-server"),
]


@dataclass(frozen=True)
class Running:
    """A Redis server, and consumers with different clocks."""

    url: str
    root: Path
    consumers: list[subprocess.Popen[bytes]]

    def require_consumers(self) -> None:
        """Fail with the logs if a consumer has ended."""
        logs = "".join((self.root / f"{seconds}.log").read_text()[-2000:] for seconds in CLOCKS)
        assert all(consumer.poll() is None for consumer in self.consumers), logs


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One consumer whose clock is an hour ahead, and one whose clock is an hour behind."""
    root = Path(tmp_path_factory.mktemp("clocks"))
    with redis_server.serve(root) as url, ExitStack() as stack:
        library, consumers = clocks.build(root), []
        for seconds in CLOCKS:
            clock = clocks.clock(library, root / f"clock{seconds}")
            clock.jump(seconds)
            consumer = consuming(url, root / "store", root / f"{seconds}.log", **clock.environment)
            consumers.append(stack.enter_context(consumer))
        yield Running(url, root, consumers)


def test_a_retry_is_delivered_whatever_the_clocks_say(running: Running) -> None:
    queue = TaskQueue(Broker(running.url))
    for task in AWAY:
        queue.send(task)

    def ended() -> bool:
        running.require_consumers()
        return queue.num_dead_letters("prober") >= len(AWAY)

    wait_until(ended)
    letters = queue.dead_letters("prober")
    assert {letter.task_id for letter in letters} == {task.task_id for task in AWAY}
    assert all("the store is away" in letter.reason for letter in letters), [letter.reason for letter in letters]
    store = Artifacts(open_store(str(running.root / "store"))).store
    records = [json.loads(store.get(failure_path(task.task_id))) for task in AWAY]
    assert [record["attempt"] for record in records] == [MAX_RETRIES + 1] * len(AWAY)


def test_a_retry_stays_in_redis_when_its_worker_is_killed_in_the_pause(running: Running) -> None:
    queue = TaskQueue(Broker(running.url))
    queue.send_again("prober", Message(task=echo(99, "prober.away").model_dump(mode="json")), pause_s=60)
    queue.send(echo(100))
    store = Artifacts(open_store(str(running.root / "store")))

    def passed_over() -> bool:
        running.require_consumers()
        return store.exists(echo(100).outputs["out"])

    wait_until(passed_over)
    for consumer in running.consumers:
        consumer.kill()
        consumer.wait()
    assert queue.waiting("prober") == {echo(99, "prober.away").task_id}
