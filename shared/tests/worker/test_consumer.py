"""A running consumer on both brokers: messages that nobody understands, tasks that fail, and tasks of others."""

import base64
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ray.serve.schema import TaskProcessorConfig
from tests.poison import POISON, QUEUE, echo
from tests.servers import redis as redis_server
from tests.servers.consuming import consuming
from tests.waiting import PATIENCE_S, wait_until

from poolbench.queue import Broker, TaskQueue
from poolbench.queue.letters import DeadLetter
from poolbench.queue.messages import KEPT_BYTES, MAX_RETRIES, TASK_NAME, Message
from poolbench.steps.prober import PROBE
from poolbench.storage import Artifacts, open_store, store_id
from poolbench.worker.consumer import QueueConsumer

AWAY = echo(7, "prober.away")


@dataclass
class Running:
    """A broker with one consumer, to which everything in the table was sent, and then a good task."""

    url: str
    root: Path
    consumer: subprocess.Popen[bytes]

    def __post_init__(self) -> None:
        self.queue = TaskQueue(Broker(self.url))
        self.artifacts = Artifacts(open_store(str(self.root / "store")))

    def put(self, raw: bytes) -> None:
        """Write a message past the client."""
        self.queue.broker.spool().put(QUEUE, raw)

    def letter_of(self, task_id: str) -> DeadLetter:
        """Wait for the dead letter of a task."""
        found: list[DeadLetter] = self.wait(
            lambda: [letter for letter in self.queue.dead_letters("prober") if letter.task_id == task_id]
        )
        return found[0]

    def record_of(self, task_id: str) -> dict[str, object]:
        """Return the failure of a task, as its driver reads it."""
        return dict(json.loads(self.artifacts.store.get(f"failures/{task_id}.json")))

    def done(self, value: int) -> bool:
        """Return whether the consumer did `echo(value)`."""
        return self.artifacts.exists(echo(value).outputs["out"])

    def wait(self, condition: Callable[[], object]) -> object:
        """Wait for a state, as long as the consumer lives."""

        def seen() -> object:
            assert self.consumer.poll() is None, (self.root / "consumer.log").read_text()[-3000:]
            return condition()

        return wait_until(seen)


@pytest.fixture(scope="module", params=redis_server.BROKERS)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = Path(tmp_path_factory.mktemp("consumer"))
    with ExitStack() as stack:
        url = stack.enter_context(redis_server.broker(request.param, root))
        consumer = stack.enter_context(consuming(url, root / "store", root / "consumer.log"))
        started = Running(url, root, consumer)
        for raw, _ in POISON.values():
            started.put(raw)
        started.queue.send(AWAY)  # its retries take some seconds
        started.queue.send(echo(1))
        started.wait(lambda: started.done(1))
        yield started


def test_each_message_is_a_dead_letter_with_its_bytes_and_nothing_else_is_lost(running: Running) -> None:
    letters = [letter for letter in running.queue.dead_letters("prober") if not letter.task_id]
    expected = {(base64.b64encode(raw[:KEPT_BYTES]).decode(), len(raw)) for raw, _ in POISON.values()}
    assert {(letter.body, letter.num_bytes) for letter in letters} == expected and len(letters) == len(POISON)
    assert all(letter.reason.startswith("not understood: ") and letter.task is None for letter in letters)
    assert running.queue.waiting("prober") <= {AWAY.task_id}
    log = (running.root / "consumer.log").read_text()
    assert log.count("dead letter of prober: ") >= len(POISON)


@pytest.mark.lane(name="brokers")
def test_a_task_that_fails_to_the_last_is_a_dead_letter_of_the_same_kind(running: Running) -> None:
    letter = running.letter_of(AWAY.task_id)
    assert letter.task == AWAY.model_dump(mode="json") and "the store is away" in letter.reason
    assert running.record_of(AWAY.task_id)["attempt"] == MAX_RETRIES + 1


@pytest.mark.parametrize(
    ("kind", "change", "step", "reason"),
    [
        ("prober.unknown", {}, None, "prober.unknown"),
        ("prober.echo", {"schema_version": 99, "more": 1}, None, "99"),
        ("prober.probe", {}, 99, f"prober.probe has version 99 in the driver and {PROBE.version} in this service"),
    ],
)
def test_a_task_of_another_version_is_refused_and_its_driver_sees_why(
    running: Running, kind: str, change: dict[str, object], step: int | None, reason: str
) -> None:
    task = echo(8, kind)
    running.put(Message(task=task.model_dump(mode="json") | change, step=step).encode())
    running.letter_of(task.task_id)
    record = running.record_of(task.task_id)
    assert reason in str(record["reason"]) and not record["retryable"]


def test_a_task_of_a_cluster_with_another_store_is_refused_and_nothing_is_recorded(running: Running) -> None:
    """Its driver would never see a record in this store, and a driver of this cluster would take it for its own."""
    task = echo(22)
    TaskQueue(running.queue.broker, lambda: "0" * 32).send(task)
    letter = running.letter_of(task.task_id)
    assert "sent by a cluster with another object store" in letter.reason and not running.done(22)
    assert not running.artifacts.store.exists(f"failures/{task.task_id}.json")
    own_id = store_id(running.artifacts.store)
    TaskQueue(running.queue.broker, lambda: own_id).send(task)
    running.wait(lambda: running.done(22))


def test_as_many_tasks_are_in_work_at_once_as_the_configuration_says_and_none_is_taken_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POOLBENCH_BROKER", f"filesystem://{tmp_path}/queue")
    monkeypatch.setenv("POOLBENCH_STORE", str(tmp_path / "store"))
    settings = {"service": "prober", "tasks_at_once": 2, "finish_s": PATIENCE_S}
    consumer = QueueConsumer(TaskProcessorConfig(queue_name=QUEUE, adapter_config=settings))
    queue, both, ended = TaskQueue(Broker(f"filesystem://{tmp_path}/queue")), threading.Barrier(2), list[str]()

    def work(task: dict[str, Any], **_: object) -> None:
        both.wait(PATIENCE_S)
        ended.append(task["task_id"])

    consumer.register_task_handle(work, TASK_NAME)
    assert not consumer.consuming()
    consumer.start_consumer()
    tasks = [echo(1), echo(2)]
    for task in tasks:
        queue.send(task)
    wait_until(lambda: len(ended) == len(tasks))
    assert consumer.consuming() and set(ended) == {task.task_id for task in tasks}
    consumer.stop_consumer()
    queue.send(echo(3))
    assert not consumer.consuming() and queue.waiting("prober") == {echo(3).task_id}
