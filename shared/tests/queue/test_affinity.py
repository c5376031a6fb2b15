"""A replica takes tasks of the model that it has loaded first, on both brokers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.redis import BROKERS, broker

from poolbench.contracts.tasks import Task
from poolbench.queue import Broker, TaskQueue
from poolbench.queue.affinity import CROWDED_PATIENCE_S, PATIENCE_S, TURN_S, Affinity
from poolbench.queue.deliveries import Deliveries
from poolbench.queue.messages import queue_name


class Consumer:
    """A replica with a model, and a clock that the test sets."""

    def __init__(self, url: str, loaded: str) -> None:
        self.loaded, self.now_s, self.crowded = loaded, 0.0, False
        affinity = Affinity(lambda: self.loaded, lambda: self.now_s, crowded=lambda: self.crowded)
        self._deliveries = Deliveries(Broker(url), queue_name("steerer"), affinity, sleep=lambda _: None)

    def take(self) -> str:
        """Return the id of the next task; empty if none is taken."""
        message = self._deliveries.next(0.0)
        return "" if message is None else message.task_id


@pytest.fixture(params=BROKERS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with broker(request.param, tmp_path) as address:
        yield address


def send(url: str, *models: str, number: int = 0) -> list[str]:
    """Send tasks, one per model, with outputs of their own from `number` on; return their ids."""
    queue, ids = TaskQueue(Broker(url)), []
    for position, model in enumerate(models, number):
        params: dict[str, Any] = {"model": model} if model else {}
        task = Task(kind="steerer.generate", outputs={"texts": f"steerer.generate.{position:04d}"}, params=params)
        queue.send(task)
        ids.append(task.task_id)
    return ids


def test_tasks_of_the_loaded_model_come_first(url: str) -> None:
    a1, b1, none, b2, a2 = send(url, "a", "b", "", "b", "a")
    first, second = Consumer(url, "a"), Consumer(url, "b")
    assert [second.take(), first.take(), first.take(), first.take()] == [b1, a1, none, a2]
    assert TaskQueue(Broker(url)).waiting("steerer") == {b2}


def test_a_task_of_another_model_waits_until_the_replica_has_had_no_work_for_some_time(url: str) -> None:
    (foreign,) = send(url, "b")
    consumer = Consumer(url, "a")
    assert consumer.take() == "" and TaskQueue(Broker(url)).waiting("steerer") == {foreign}
    consumer.now_s = 0.9 * PATIENCE_S
    (own,) = send(url, "a", number=1)
    assert consumer.take() == own
    consumer.now_s = 3 * PATIENCE_S  # its own task ends
    assert consumer.take() == ""
    consumer.now_s = 3.9 * PATIENCE_S
    assert consumer.take() == ""
    consumer.now_s = 4 * PATIENCE_S
    assert consumer.take() == foreign


def test_a_task_of_another_model_waits_for_some_time_only_while_there_is_work(url: str) -> None:
    (foreign,) = send(url, "b")
    own = send(url, "a", "a", "a", number=1)
    consumer = Consumer(url, "a")
    assert consumer.take() == own[0]
    consumer.now_s = 0.9 * TURN_S
    assert consumer.take() == own[1]
    consumer.now_s = TURN_S
    assert consumer.take() == foreign
    consumer.loaded = "b"  # its turn begins: the tasks of the model before wait in their turn
    (next_foreign,) = send(url, "b", number=4)
    consumer.now_s = 1.9 * TURN_S
    assert consumer.take() == next_foreign
    assert consumer.take() == ""


def test_without_a_model_the_first_task_is_taken(url: str) -> None:
    ids = send(url, "b", "a")
    consumer = Consumer(url, "")
    assert [consumer.take(), consumer.take()] == ids


@pytest.mark.parametrize("loaded", ["", "a"])
def test_while_another_service_works_on_the_gpu_a_task_is_left_to_others_for_some_time(url: str, loaded: str) -> None:
    first, second = send(url, "a", "a")
    beside, free = Consumer(url, loaded), Consumer(url, "")
    beside.crowded = True
    assert [beside.take(), free.take(), beside.take()] == ["", first, ""]
    beside.now_s = CROWDED_PATIENCE_S
    assert beside.take() == second
    (third,) = send(url, "a", number=2)
    assert beside.take() == ""
    beside.crowded = False
    assert beside.take() == third


def test_a_task_of_another_model_is_left_to_a_free_gpu_too(url: str) -> None:
    (foreign,) = send(url, "b")
    consumer = Consumer(url, "a")
    consumer.crowded = True
    assert consumer.take() == ""
    consumer.now_s = 0.9 * CROWDED_PATIENCE_S
    assert consumer.take() == ""
    consumer.now_s = CROWDED_PATIENCE_S
    assert consumer.take() == foreign


def test_what_is_no_task_stops_nothing(url: str) -> None:
    queue = TaskQueue(Broker(url))
    foreign, own = send(url, "b", "a")
    place = queue.broker
    if place.is_folder:
        (place.folder / "messages" / f"00000000000000000001-x.{queue_name('steerer')}.msg").write_bytes(b"{}")
    else:
        place.redis_client().rpush(queue_name("steerer"), b"{}")
    consumer = Consumer(url, "a")
    taken = [consumer.take() for _ in range(3)]
    assert own in taken and len(queue.dead_letters("steerer")) == 1
    assert {foreign} >= queue.waiting("steerer")
