"""A cluster on a real Redis server: tasks by queue, HTTP beside them, what a killed worker leaves behind."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import httpx
import pytest
from deploy.local.state import Cluster, free_port, load
from tests.servers import local
from tests.servers import redis as redis_server
from tests.servers.authority import issue
from tests.waiting import PATIENCE_S, wait_until

from poolbench.contracts.tables import PASSAGES, table_from_rows
from poolbench.contracts.tasks import Task
from poolbench.http.tls import client_context
from poolbench.queue import Broker, LeaseStore, TaskQueue, open_leases
from poolbench.settings import ClusterSettings
from poolbench.storage import Artifacts, open_store

PASSAGES_KEY = "corpus.passages.redis-test"

pytestmark = [
    pytest.mark.lane(name="brokers"),
    pytest.mark.skipif(not redis_server.available(), reason="needs the Debian package redis-server"),
]


@dataclass(frozen=True)
class Running:
    """A cluster and the ways into it."""

    environment: dict[str, str]
    settings: ClusterSettings

    @property
    def artifacts(self) -> Artifacts:
        return Artifacts(open_store(self.settings.store_uri))

    @property
    def queue(self) -> TaskQueue:
        return TaskQueue(Broker(self.settings.broker_url))

    @property
    def leases(self) -> LeaseStore:
        return open_leases(Broker(self.settings.broker_url))

    @property
    def cluster(self) -> Cluster:
        found = load(Path(self.environment["POOLBENCH_STATE"]))
        assert found is not None
        return found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = Path(tmp_path_factory.mktemp("cluster"))
    with ExitStack() as stack:
        files = issue(folder / "authority")
        url = stack.enter_context(redis_server.serve(folder, files))
        tls = {"HTTP_TLS_CERT": files.cert, "HTTP_TLS_KEY": files.key}
        tls |= dict.fromkeys(("HTTP_CA_FILE", "BROKER_CA_FILE"), files.authority)
        stack.enter_context(patch.dict(os.environ, {f"POOLBENCH_{name}": str(file) for name, file in tls.items()}))
        places = {"POOLBENCH_STATE": str(folder / "state"), "POOLBENCH_BROKER": url}
        environment = {**os.environ, **places, "POOLBENCH_HTTP_PORT": str(free_port())}
        up = local.command("up", environment)
        stack.callback(local.command, "down", environment)
        assert up.returncode == 0, up.stdout + up.stderr
        assert redis_server.PASSWORD not in up.stdout
        with patch.dict(os.environ, environment):
            settings = ClusterSettings.load()
        yield Running(environment, settings)


def _write_passages(running: Running, key: str, num_passages: int) -> str:
    """Passages that no task has annotated before; 300 keep the pooler busy for some seconds."""
    text = "The council met because the harbour had silted up, and nobody objected. " * 6
    rows = [
        {
            "passage_id": f"p{n}",
            "concept": "causation",
            "split": "train",
            "label": n % 2,
            "text": f"{key} {n}. {text}",
        }
        for n in range(num_passages)
    ]
    empty = {"domain": "", "doc_id": "made/1", "source": "made", "licence": "CC0-1.0", "signal": []}
    running.artifacts.write_table(key, table_from_rows([row | empty for row in rows], PASSAGES))
    return key


@pytest.fixture(scope="module")
def passages(running: Running) -> str:
    """Key of passages that keep the pooler busy for some seconds."""
    return _write_passages(running, PASSAGES_KEY, 300)


def _annotate(passages: str, name: str) -> Task:
    return Task(
        kind="pooler.annotate",
        inputs={"passages": passages},
        outputs={"annotations": f"pooler.annotations.{name}-{time.time_ns()}"},
    )


def _done(running: Running, task: Task) -> bool:
    return all(running.artifacts.exists(key) for key in task.outputs.values())


def test_a_task_goes_through_the_queue_and_http_answers_beside_it(running: Running, passages: str) -> None:
    task = _annotate(passages, "first")
    running.queue.send(task)
    wait_until(lambda: running.leases.alive(task.task_id))
    started = time.monotonic()
    address = f"{running.settings.http_address}/pooler/health"
    assert address.startswith("https://")
    answer = httpx.get(address, timeout=PATIENCE_S, verify=client_context())
    assert answer.json() == {"status": "ok"}
    assert not _done(running, task), f"the task ended before HTTP was tried, {time.monotonic() - started:.1f} s"
    wait_until(lambda: _done(running, task), 240)
    wait_until(lambda: not running.leases.alive(task.task_id))
    producer = running.artifacts.manifest(task.outputs["annotations"]).producer
    assert producer["task_id"] == task.task_id and producer["wall_s"] > 0


def test_a_killed_workers_task_can_be_sent_again(running: Running) -> None:
    task = _annotate(_write_passages(running, f"{PASSAGES_KEY}.killed", 900), "killed")
    (replica,) = _pids(running, "pooler")
    running.queue.send(task)
    wait_until(lambda: running.leases.alive(task.task_id))
    os.kill(replica, signal.SIGKILL)  # long before it can be done
    wait_until(lambda: not running.leases.alive(task.task_id))
    assert not _done(running, task)
    running.queue.send(task)
    wait_until(lambda: _done(running, task), 240)


def test_status_names_every_service_and_no_password(running: Running) -> None:
    status = local.command("status", running.environment)
    assert status.returncode == 0
    assert status.stdout.count("RUNNING") == 6  # the console is none of the five
    assert redis_server.PASSWORD not in status.stdout


def _pids(running: Running, service: str) -> set[int]:
    processes = running.cluster.processes()
    return {process.pid for process in processes if f"ServeReplica:{service}" in " ".join(process.cmdline())}


def test_running_replicas_find_a_concept_that_is_added_after_they_started(running: Running) -> None:
    """The pooler takes it through the gate. The scorer, which knew no such name, then trains it without a restart."""
    headers = {"Authorization": f"Bearer {running.settings.token}"}
    base, tls = running.settings.http_address or "", client_context()
    with httpx.Client(base_url=base, headers=headers, timeout=PATIENCE_S, verify=tls) as client:
        texts = [f"Many thanks, dear friend number {n} of {n * 7}, for the {n}th of all gifts." for n in range(40)]
        lines = ["".join(json.dumps({"text": text}) + "\n" for text in group) for group in (texts[::2], texts[1::2])]
        files = dict(zip(("positives", "negatives"), lines, strict=True))
        concept = {"id": "gratitude", **{name: {"name": f"{name}.jsonl", "content": c} for name, c in files.items()}}
        passages = [{"text": text, "label": n % 2, "doc_id": str(n)} for n, text in enumerate(texts)]
        train = {"params": {"concept": "gratitude", "mode": "head", "epochs": 1}, "passages": passages}
        unknown = client.post("/scorer/train", json=train)
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "unknown_concept")
        before = _pids(running, "scorer")
        assert client.post("/pooler/concepts", json=concept, headers={"Authorization": "Bearer x"}).status_code == 401
        assert client.get("/pooler/concepts").json() == {"concepts": []}
        added = client.post("/pooler/concepts", json=concept)
        assert added.json()["registered"], added.text
        trained = client.post("/scorer/train", json=train)
        assert trained.status_code == 200, trained.text
        assert before and _pids(running, "scorer") == before
        assert client.delete("/pooler/concepts/gratitude").json() == {"removed": "gratitude"}
        assert client.post("/scorer/train", json=train).status_code == 404
