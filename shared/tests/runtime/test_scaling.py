"""How many replicas a service asks for: the rule, and the policy on a real broker."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers import redis as redis_server

from poolbench.contracts.tasks import Task
from poolbench.queue.broker import Broker
from poolbench.queue.client import TaskQueue
from poolbench.runtime import scaling
from poolbench.runtime.scaling import HOLDS_STATE, REQUESTS, TASKS_IN_WORK, Demand, QueueLengthPolicy


@pytest.mark.parametrize(
    ("demand", "there", "replicas"),
    [
        (Demand(0, 0, 0), 3, 0),
        (Demand(1, 0, 0), 0, 1),  # the first message starts the first replica
        (Demand(0, 0, 0.02), 0, 1),  # so does a short request, of which Serve gives the mean over time
        (Demand(5, 2, 0), 2, 7),
        (Demand(0, 1, 0), 3, 1),
        (Demand(4, 1, 9), 1, 7),  # 5 tasks, and 9 requests of which a replica takes 8
        (Demand(None, 0, 0), 3, 3),  # the broker cannot be read: keep what is there
        (Demand(None, 0, 0), 0, 0),
        (Demand(None, 0, 40), 3, 5),
        (Demand(0, 0, 0, holding_state=1), 3, 3),
    ],
)
def test_replicas_of_a_demand(demand: Demand, there: int, replicas: int) -> None:
    assert demand.replicas(1.0, 8.0, there) == replicas


def test_more_tasks_per_replica() -> None:
    assert Demand(7, 3, 0).replicas(4.0, 8.0, 1) == 3


class Context:
    """What Serve tells a policy."""

    def __init__(
        self, there: int, *, requests: float = 0.0, queued: float = 0.0, in_work: float = 0.0, holding: float = 0.0
    ) -> None:
        from ray.serve.config import AutoscalingConfig

        self.target_num_replicas, self.running_replicas = there, ["a"] * there
        self.total_queued_requests = queued
        self.aggregated_metrics: dict[str, dict[str, float]] = {
            TASKS_IN_WORK: {"a": in_work},
            REQUESTS: {"a": requests},
            HOLDS_STATE: {"a": holding},
        }
        self.config = AutoscalingConfig(min_replicas=0, max_replicas=8)


@pytest.fixture(params=redis_server.BROKERS)
def broker(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker that the environment names."""
    with redis_server.broker(request.param, tmp_path) as url:
        monkeypatch.setenv("POOLBENCH_STORE", str(tmp_path / "store"))
        monkeypatch.setenv("POOLBENCH_BROKER", url)
        yield Broker(url)


def _policy(idle_s: float = 60.0) -> QueueLengthPolicy:
    return QueueLengthPolicy("scorer", 1.0, 8.0, idle_s=idle_s, poll_interval_s=0.0)


def _ask(policy: QueueLengthPolicy, context: Any) -> int:
    """Return the answer after the broker was read; the policy itself never waits for it."""
    answers = []
    for _ in range(2):
        answers.append(policy(context)[0])
        assert policy._poller is not None
        policy._poller.join()
    return int(answers[-1])


def _send(queue: TaskQueue, number: int, service: str = "scorer") -> None:
    for n in range(number):
        queue.send(Task(kind=f"{service}.score", inputs={}, outputs={"texts": f"k{n}"}, params={"n": n}))


def test_the_queue_tasks_in_work_and_requests_count(broker: Broker) -> None:
    queue, policy = TaskQueue(broker), _policy()
    _send(queue, 3)
    _send(queue, 5, "steerer")
    assert _ask(policy, Context(1, in_work=2.0, requests=9.0)) == 7
    queue.purge("scorer")
    queue.purge("steerer")
    _send(queue, 20)
    assert queue.depth("scorer", limit=8) == 8
    assert _ask(policy, Context(1)) == 8  # counted up to what the largest number of replicas is for
    queue.purge("scorer")


def test_replicas_end_when_they_were_idle_for_long(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = _policy(idle_s=60.0)
    assert _ask(policy, Context(2)) == 2
    began_s = time.monotonic()
    monkeypatch.setattr(scaling.time, "monotonic", lambda: began_s + 59.0)
    assert _ask(policy, Context(2)) == 2
    monkeypatch.setattr(scaling.time, "monotonic", lambda: began_s + 61.0)
    assert _ask(policy, Context(2, holding=1.0)) == 2
    monkeypatch.setattr(scaling.time, "monotonic", lambda: began_s + 122.0)
    assert _ask(policy, Context(2)) == 0


def test_a_broker_that_is_away_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLBENCH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("POOLBENCH_BROKER", "redis://127.0.0.1:1/0")
    policy = _policy(idle_s=0.001)
    for there in (0, 3):
        assert _ask(policy, Context(there)) == there
    assert _ask(policy, Context(0, queued=1.0)) == 1


def test_serve_counts_what_waits_for_a_first_replica(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, began_s = _policy(idle_s=1e-9), time.monotonic()
    assert _ask(_policy(), Context(0, queued=0.02)) == 1
    assert _ask(policy, Context(1, queued=3.0)) == 0
    assert _ask(policy, Context(0, queued=0.02)) == 0  # left of questions for `/health`
    assert _ask(policy, Context(0, queued=0.3)) == 1
    monkeypatch.setattr(scaling.time, "monotonic", lambda: began_s + 60.0)
    assert _ask(policy, Context(0, queued=0.02)) == 1
