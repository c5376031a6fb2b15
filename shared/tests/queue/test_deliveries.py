"""A consumer of the Redis queue that is killed between any two of its requests loses at most the task it took."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.connection import AbstractConnection
from tests.servers import redis as redis_server

from poolbench.contracts.tasks import Task
from poolbench.queue import Broker, TaskQueue
from poolbench.queue.affinity import Affinity
from poolbench.queue.deliveries import Deliveries
from poolbench.queue.messages import queue_name

pytestmark = [
    pytest.mark.lane(name="brokers"),
    pytest.mark.skipif(not redis_server.available(), reason="needs the Debian package redis-server"),
]

QUEUE = queue_name("prober")
#: More requests than a consumer needs for one task.
MOST_REQUESTS = 100


class Killed(BaseException):
    """Before a request of a consumer."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server.serve(Path(tmp_path_factory.mktemp("redis"))) as address:
        yield address


def task_of(model: str) -> Task:
    return Task(kind="prober.probe", params={"model": model}, outputs={"measures": f"prober.probe.{model}"})


def consume(url: str, affinity: Affinity | None, num_requests: int) -> bool:
    """Take one task; return False if the consumer was killed after so many requests."""
    sent = 0
    send = AbstractConnection.send_packed_command

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        nonlocal sent
        sent += 1
        if sent > num_requests:
            raise Killed
        return send(self, *args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(AbstractConnection, "send_packed_command", counted)
        try:
            deliveries = Deliveries(Broker(url), QUEUE, affinity, sleep=lambda _: None)
            while deliveries.next(0.0) is None:
                pass
        except Killed:
            return False
    return True


def places(client: redis.Redis) -> dict[str, int]:
    """Return how many messages wait, and how many are dead letters."""
    keys = {"waiting": client.llen(QUEUE), "dead": client.llen(f"{QUEUE}.failed")}
    return {name: int(count) for name, count in keys.items() if count}


@pytest.mark.parametrize("case", ["a task", "a task behind one of another model", "a task behind garbage"])
def test_only_the_last_request_of_a_consumer_takes_a_task(url: str, case: str) -> None:
    client, queue = redis.Redis.from_url(url), TaskQueue(Broker(url))
    affinity = Affinity(lambda: "demo") if case.endswith("model") else None
    for num_requests in range(MOST_REQUESTS):
        client.flushdb()
        if case == "a task behind garbage":
            client.lpush(QUEUE, b"garbage")
        if affinity:
            queue.send(task_of("other"))
        queue.send(task_of("demo"))
        before = places(client)["waiting"]
        if consume(url, affinity, num_requests):
            break
        assert sum(places(client).values()) == before, f"killed after {num_requests} requests"
    else:
        pytest.fail(f"not done after {MOST_REQUESTS} requests")
    assert places(client) == {"a task": {}, "a task behind garbage": {"dead": 1}}.get(case, {"waiting": 1})
