"""Messages that nobody can understand, on both brokers, before one running consumer that then does a good task."""

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.poison import POISON, QUEUE, echo
from tests.servers import redis as redis_server

from poolbench.queue import Broker, TaskQueue
from poolbench.queue.envelope import KEPT_BYTES, MAX_RETRIES, Message, Misunderstood, understand
from poolbench.queue.letters import DeadLetter
from poolbench.steps.prober import PROBE
from poolbench.storage import Artifacts, open_store, store_id

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_S = 600
AWAY = echo(7, "prober.away")

both_brokers = pytest.mark.parametrize("running", redis_server.BROKERS, indirect=True, scope="module")


@dataclass
class Running:
    """A broker with one consumer, to which everything in the table was sent, and then a good task."""

    url: str
    root: Path
    consumer: subprocess.Popen[bytes]

    def __post_init__(self) -> None:
        self.queue = TaskQueue(Broker(self.url))
        self.artifacts = Artifacts(open_store(str(self.root / "store")))

    def put(self, raw: bytes, number: int) -> None:
        """Writes a message past the client."""
        if self.url.startswith("filesystem"):
            (self.messages / f"{number:020d}.{QUEUE}.msg").write_bytes(raw)
        else:
            self.redis.lpush(QUEUE, raw)

    @property
    def messages(self) -> Path:
        """Folder of the messages, of a folder broker."""
        return self.root / "queue" / "messages"

    @property
    def redis(self) -> Any:
        """A client, of a Redis broker."""
        import redis

        return redis.Redis.from_url(self.url)

    def letters(self) -> list[DeadLetter]:
        """The dead letters so far."""
        return self.queue.dead_letters("prober")

    def done(self, value: int) -> bool:
        """Whether the consumer did `echo(value)`."""
        return self.artifacts.exists(echo(value).outputs["out"])

    def wait(self, condition: Callable[[], bool]) -> None:
        """Waits for a state, as long as the consumer lives."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert self.consumer.poll() is None, (self.root / "consumer.log").read_text()[-3000:]
            assert time.monotonic() < deadline, (self.root / "consumer.log").read_text()[-3000:]
            time.sleep(0.05)


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = Path(tmp_path_factory.mktemp("poison"))
    with ExitStack() as stack:
        url = stack.enter_context(redis_server.broker(request.param, root))
        started = Running(url, root, _start_consumer(url, root))
        stack.callback(started.consumer.wait)
        stack.callback(started.consumer.kill)
        for number, (raw, _) in enumerate(POISON.values()):
            started.put(raw, number)
        started.queue.send(AWAY)  # its retries take some seconds
        started.queue.send(echo(1))
        started.wait(lambda: started.done(1))
        yield started


def _start_consumer(url: str, root: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "POOLBENCH_BROKER": url, "POOLBENCH_STORE": str(root / "store")}
    command = [sys.executable, "-m", "tests.servers.consumer"]
    with (root / "consumer.log").open("wb") as log:
        return subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log)


@both_brokers
@pytest.mark.parametrize("name", POISON)
def test_poison_becomes_a_dead_letter_with_its_bytes_and_the_reason(running: Running, name: str) -> None:
    raw, reason = POISON[name]
    body = base64.b64encode(raw[:KEPT_BYTES]).decode()
    letters = [each for each in running.letters() if (each.body, each.num_bytes) == (body, len(raw))]
    (letter,) = [each for each in letters if reason in each.reason]
    assert letter.reason.startswith("not understood: ")
    assert len(letter.reason) < 700 and letter.reason.isprintable()
    assert letter.service == "prober" and letter.task is None


@both_brokers
@pytest.mark.slow
def test_nothing_else_is_lost_or_invented(running: Running) -> None:
    running.wait(lambda: any(letter.task_id == AWAY.task_id for letter in running.letters()))
    assert running.consumer.poll() is None
    assert running.queue.depth("prober") == 0
    letters = [letter for letter in running.letters() if letter.task_id != AWAY.task_id]
    assert len(letters) == len(POISON)
    log = (running.root / "consumer.log").read_text()
    assert sum("dead letter of prober: " in line for line in log.splitlines()) == len(running.letters())


@both_brokers
@pytest.mark.slow
def test_a_task_that_fails_to_the_last_is_a_dead_letter_of_the_same_kind(running: Running) -> None:
    running.wait(lambda: any(letter.task_id == AWAY.task_id for letter in running.letters()))
    (letter,) = [each for each in running.letters() if each.task_id]
    assert letter.task == AWAY.model_dump(mode="json") and "the store is away" in letter.reason
    record = json.loads(running.artifacts.store.get(f"failures/{AWAY.task_id}.json"))
    assert record["attempt"] == MAX_RETRIES + 1


@both_brokers
@pytest.mark.parametrize("change", [{"kind": "prober.unknown"}, {"schema_version": 99, "more": 1}])
def test_a_task_of_another_version_is_refused_and_its_driver_sees_why(running: Running, change: dict[str, Any]) -> None:
    task = echo(8, change.get("kind", "prober.echo"))
    running.put(json.dumps(Message(task.model_dump(mode="json") | change).envelope(QUEUE)).encode(), time.time_ns())
    running.wait(lambda: any(letter.task_id == task.task_id for letter in running.letters()))
    record = json.loads(running.artifacts.store.get(f"failures/{task.task_id}.json"))
    assert not record["retryable"]


@both_brokers
def test_a_task_of_a_driver_with_other_code_is_refused_and_its_driver_sees_why(running: Running) -> None:
    task = echo(21, "prober.probe")
    sent = replace(Message(task.model_dump(mode="json")), step=99)
    running.put(json.dumps(sent.envelope(QUEUE)).encode(), time.time_ns())
    running.wait(lambda: any(letter.task_id == task.task_id for letter in running.letters()))
    record = json.loads(running.artifacts.store.get(f"failures/{task.task_id}.json"))
    assert f"prober.probe has version 99 in the driver and {PROBE.version} in this service" in record["reason"]


@both_brokers
def test_a_task_of_a_cluster_with_another_store_is_refused_and_nothing_is_recorded(running: Running) -> None:
    """Its driver would never see a record in this store, and a driver of this cluster would take it for its own."""
    strange, ours = TaskQueue(Broker(running.url), lambda: "0" * 32), echo(22)
    strange.send(ours)
    running.wait(lambda: any(letter.task_id == ours.task_id for letter in running.letters()))
    (letter,) = [each for each in running.letters() if each.task_id == ours.task_id]
    assert "sent by a cluster with another object store" in letter.reason and not running.done(22)
    assert not running.artifacts.store.exists(f"failures/{ours.task_id}.json")
    own_id = store_id(running.artifacts.store)
    TaskQueue(Broker(running.url), lambda: own_id).send(ours)
    running.wait(lambda: running.done(22))


@both_brokers
def test_garbage_among_the_dead_letters_is_shown(running: Running) -> None:
    for number, raw in enumerate([b"garbage", b"\xff", b"[]", b'{"reason": 1}', b"[" * 100_000]):
        if running.url.startswith("redis"):
            running.redis.lpush(f"{QUEUE}.failed", raw)
        else:
            (running.root / "queue" / "dead" / f"9{number}.{QUEUE}.msg").write_bytes(raw)
    newest = running.queue.dead_letters("prober", 5)
    assert all("no dead letter of ours" in letter.reason for letter in newest)
    assert base64.b64decode(newest[0].body) == b"garbage"
    assert all(letter.line.isprintable() for letter in newest)


def test_what_celery_adds_by_itself_is_understood_and_not_passed_on() -> None:
    envelope = Message(echo(3).model_dump(mode="json")).envelope(QUEUE)
    envelope["headers"] |= {"stamps": {}, "shadow": "x", "argsrepr": "()", "eta": "9999-12-31T23:59:59+00:00"}
    envelope["properties"] |= {"reply_to": "somewhere", "delivery_tag": "mine"}
    envelope["properties"]["delivery_info"] = {"exchange": "celery.pidbox", "routing_key": "elsewhere"}
    found = understand(json.dumps(envelope).encode())
    assert not isinstance(found, Misunderstood)
    passed = json.dumps(found.envelope(QUEUE))
    assert not any(word in passed for word in ("shadow", "somewhere", "mine", "pidbox", "elsewhere", "9999-12"))
