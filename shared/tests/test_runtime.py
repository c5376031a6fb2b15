"""A service in Ray Serve that ends its last replica without work, and starts one for a message or a request."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.pages import REPOSITORY
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
    state = tmp_path_factory.mktemp("state")
    environment = {**os.environ, "POOLBENCH_STATE": str(state), "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "tests.servers.scaled", str(state)]
    with (state / "scaled.log").open("w") as log:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}
        with subprocess.Popen(command, env=environment, cwd=REPOSITORY, **pipes) as process:
            assert process.stdin is not None and process.stdout is not None
            lines = iter(process.stdout.readline, "")
            found = next((line for line in lines if line.startswith("{")), "")
            assert found, (state / "scaled.log").read_text()[-3000:]
            yield Scaled(**json.loads(found))
            process.stdin.close()


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
