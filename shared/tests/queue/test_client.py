"""The queue and its leases: what both brokers do, then a folder: concurrency, damage, pauses, ends of processes."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.redis import BROKERS, broker
from tests.waiting import PATIENCE_S

from poolbench.contracts.tasks import Task
from poolbench.errors import BrokerError, ConfigError
from poolbench.queue import Broker, TaskQueue, open_leases
from poolbench.queue import folder as folder_transport
from poolbench.queue import leases as lease_module
from poolbench.queue import lists as list_transport
from poolbench.queue.deliveries import Deliveries
from poolbench.queue.leases import FolderLeases
from poolbench.queue.messages import Message, queue_name


def _task(number: int, kind: str = "prober.probe") -> Task:
    return Task(kind=kind, outputs={"measures": f"prober.probe.{number:04d}"}, params={"seed": number})


@pytest.fixture
def queue(tmp_path: Path) -> TaskQueue:
    return TaskQueue(Broker(f"filesystem://{tmp_path}/queue"))


@pytest.fixture(params=BROKERS)
def each_queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TaskQueue]:
    """An empty queue on each kind of broker."""
    with broker(request.param, tmp_path) as url:
        yield TaskQueue(Broker(url))


def _deliveries(queue: TaskQueue) -> Deliveries:
    return Deliveries(queue.broker, queue_name("prober"), sleep=lambda _: None)


def test_sent_tasks_wait_in_their_services_queue(each_queue: TaskQueue) -> None:
    each_queue.ping()
    tasks = [_task(0), _task(1), _task(2, "scorer.score")]
    for task in tasks:
        each_queue.send(task)
    assert each_queue.depth("prober") == 2
    assert each_queue.waiting("prober") == {tasks[0].task_id, tasks[1].task_id}
    assert each_queue.waiting("scorer") == {tasks[2].task_id}
    assert each_queue.depth("steerer") == 0
    assert 0 <= each_queue.oldest_s("prober") < PATIENCE_S and each_queue.oldest_s("steerer") == 0
    assert each_queue.purge("prober") == 2 and each_queue.depth("prober") == 0


def test_oldest_message_comes_first(queue: TaskQueue) -> None:
    sent = [_task(number) for number in range(12)]
    for task in sent:
        queue.send(task)
    deliveries = _deliveries(queue)
    taken = [_take(deliveries) for _ in sent]
    assert taken == [task.task_id for task in sent]


def test_every_message_goes_to_exactly_one_of_many_consumers(queue: TaskQueue) -> None:
    num_messages = 60
    for number in range(num_messages):
        queue.send(_task(number))
    taken: list[str] = []

    def consume() -> None:
        deliveries = _deliveries(queue)
        while queue.depth("prober"):
            if task_id := _take(deliveries):
                taken.append(task_id)

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == len(set(taken)) == num_messages


def test_dead_letters_are_listed_and_stay(each_queue: TaskQueue) -> None:
    task = _task(7)
    each_queue.bury("prober", task.model_dump(mode="json"), "the store was away")
    for _ in range(2):
        (letter,) = each_queue.dead_letters("prober")
        assert (letter.task_id, letter.reason) == (task.task_id, "the store was away")
    assert each_queue.depth("prober") == 0
    assert each_queue.purge("prober") == 1
    assert each_queue.dead_letters("prober") == []


@pytest.mark.parametrize("url", ["amqp://host", "filesystem://relative/folder", ""])
def test_wrong_broker_addresses_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="filesystem:///"):
        Broker(url)


def test_an_unreachable_redis_is_a_broker_error() -> None:
    with pytest.raises(BrokerError, match="does not answer"):
        TaskQueue(Broker("redis://127.0.0.1:1/0")).ping()
    leases = open_leases(Broker("redis://127.0.0.1:1/0"))
    with pytest.raises(BrokerError, match="does not answer"):
        leases.acquire("job")
    with pytest.raises(BrokerError, match="does not answer"):
        leases.alive("job")


def test_a_message_that_cannot_be_buried_stays_and_stops_nothing(
    queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = queue.broker.folder / "messages" / f"000.{queue_name('prober')}.msg"
    waiting.write_bytes(b"garbage")
    queue.send(_task(1))

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    deliveries = _deliveries(queue)
    with monkeypatch.context() as patched:
        patched.setattr(folder_transport.FolderSpool, "bury_message", full)
        assert [_take(deliveries), _take(deliveries)] == [None, _task(1).task_id]
    assert waiting.read_bytes() == b"garbage"
    assert _take(_deliveries(queue)) is None  # the next consumer tries again
    assert "garbage" in queue.dead_letters("prober")[0].reason


def test_a_consumer_that_is_killed_loses_no_message_and_leaves_no_file(
    queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Before the message is removed."""

    def killed(*args: object) -> bool:
        raise Killed

    (queue.broker.folder / "messages" / f"000.{queue_name('prober')}.msg").write_bytes(b"garbage")
    queue.send(_task(1))
    with monkeypatch.context() as patched:
        patched.setattr(folder_transport.FolderSpool, "take", killed)
        for _ in range(2):
            with pytest.raises(Killed):
                _take(_deliveries(queue))
    deliveries = _deliveries(queue)
    assert {_take(deliveries), _take(deliveries)} == {None, _task(1).task_id}
    assert len(queue.dead_letters("prober")) == 1
    files = {path.name for path in queue.broker.folder.rglob("*") if path.is_file() and path.suffix == ".msg"}
    assert files == {f"000-letter.{queue_name('prober')}.msg"}


def test_the_oldest_of_many_letters_of_a_service_are_removed(
    each_queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (folder_transport, list_transport):
        monkeypatch.setattr(module, "MOST_KEPT", 3)
    each_queue.bury("scorer", _task(0, "scorer.score").model_dump(mode="json"), "once")
    for number in range(5):
        each_queue.bury("prober", _task(number).model_dump(mode="json"), f"failure {number}")
    assert [letter.reason for letter in each_queue.dead_letters("prober")] == ["failure 2", "failure 3", "failure 4"]
    assert each_queue.num_dead_letters("scorer") == 1


def _take(deliveries: Deliveries) -> str | None:
    """Return the id of the next message, or None if a consumer has to ask again."""
    message = deliveries.next(0.0)
    return None if message is None else message.task_id


def _sent_again(queue: TaskQueue, task: Task, pause_s: float) -> None:
    queue.send_again("prober", Message(task=task.model_dump(mode="json")), pause_s)


def test_a_message_that_pauses_is_delivered_later_and_delays_no_other(each_queue: TaskQueue) -> None:
    now_s = 1000.0
    again, other = _task(0), _task(1)
    _sent_again(each_queue, again, 2.5)
    each_queue.send(other)
    deliveries = Deliveries(each_queue.broker, queue_name("prober"), now_s=lambda: now_s, sleep=lambda _: None)
    assert [_take(deliveries) for _ in range(3)] == [None, other.task_id, None]
    assert each_queue.waiting("prober") == {again.task_id}
    now_s += 2.4
    assert _take(deliveries) is None
    now_s += 0.2
    message = deliveries.next(0.0)
    assert message is not None and (message.task_id, message.retries) == (again.task_id, 1)


def test_a_message_that_pauses_outlives_its_consumer(each_queue: TaskQueue) -> None:
    now_s = 1000.0
    _sent_again(each_queue, _task(0), 2.0)
    killed, survivor = (
        Deliveries(each_queue.broker, queue_name("prober"), now_s=lambda: now_s, sleep=lambda _: None) for _ in range(2)
    )
    assert _take(killed) is None
    now_s += 1.0
    assert _take(survivor) is None  # it counts from the moment when it found the message
    now_s += 2.0
    assert _take(survivor) == _task(0).task_id
    assert _take(killed) is None


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


def test_a_lease_waits_for_those_who_only_look_at_it(leases: FolderLeases, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = leases.acquire("job")
    assert lease is not None
    (path,) = leases.root.iterdir()
    lease.release()
    path.touch()
    looks = path.open()
    fcntl.flock(looks, fcntl.LOCK_SH)
    pauses = list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 20:
            looks.close()

    monkeypatch.setattr(lease_module.time, "sleep", pause)
    again = leases.acquire("job")
    assert again is not None and len(pauses) == 20
    again.release()


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


def test_the_broker_names_its_leases_and_hides_its_password(tmp_path: Path) -> None:
    store = open_leases(Broker(f"filesystem://{tmp_path}"))
    assert isinstance(store, FolderLeases)
    assert store.root == tmp_path / "leases"
    assert Broker("redis://:secret@host:6379/0").shown == "redis://host:6379/0"
