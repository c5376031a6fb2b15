"""A service in Ray Serve that ends its last replica without work, and starts one for a message or a request."""

import time
from collections.abc import Iterator

import httpx
import pytest
from tests.servers.gated import started
from tests.waiting import PATIENCE_S, wait_until

from poolbench.contracts.tasks import Task
from poolbench.queue import Broker, TaskQueue
from poolbench.statuses import ServiceState
from poolbench.storage import Artifacts, open_store

pytestmark = [pytest.mark.lane(name="gate")]


class Scaled:
    """A running cluster with one service."""

    def __init__(self, http: str, token: str, store: str, broker: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self.client = httpx.Client(base_url=f"{http}/scorer", headers=headers, timeout=PATIENCE_S, trust_env=False)
        self.queue, self.artifacts = TaskQueue(Broker(broker)), Artifacts(open_store(store))

    def wait_until_asleep(self) -> None:
        """Wait for the end of the last replica."""
        wait_until(lambda: self.client.get("/health").json()["status"] == ServiceState.ASLEEP)

    def send(self, seconds: float) -> str:
        """Send a task; return the key of its output."""
        task = Task(kind="scorer.nap", outputs={"out": f"nap.{time.time_ns()}"}, params={"seconds": seconds})
        self.queue.send(task)
        return task.outputs["out"]


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scaled]:
    with started("tests.servers.scaled", tmp_path_factory.mktemp("state")) as places:
        yield Scaled(**places)


def test_a_message_starts_a_replica_which_finishes_its_task_before_it_ends(scaled: Scaled) -> None:
    scaled.wait_until_asleep()
    key = scaled.send(seconds=15)
    wait_until(lambda: scaled.artifacts.exists(key))
    assert scaled.artifacts.manifest(key).producer["delivery"] == 1
    scaled.wait_until_asleep()
    assert scaled.queue.num_dead_letters("scorer") == 0


def test_a_request_starts_a_replica_and_a_question_for_health_does_not(scaled: Scaled) -> None:
    scaled.wait_until_asleep()
    for _ in range(3):
        assert scaled.client.get("/health").json() == {"status": ServiceState.ASLEEP}
        time.sleep(2)  # a replica that a question had started would show by then
    assert scaled.client.post("/echo", json={"a": 1}).json() == {"a": 1}
