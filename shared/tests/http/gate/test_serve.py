"""The gate in Ray Serve's own proxy, and the border of a real replica."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.servers.collector import Collector, collecting
from tests.servers.door import closed, read_reply, request
from tests.servers.exploding import UNPICKLING_S
from tests.servers.gated import NUM_RUNNING, started
from tests.waiting import wait_until

from poolbench.contracts.tasks import Task
from poolbench.queue import Broker, TaskQueue
from poolbench.telemetry.catalog import (
    DEAD_LETTERS,
    HTTP_REFUSALS,
    INSTRUMENTS,
    QUEUE_OLDEST_SECONDS,
    TASK_WAIT_SECONDS,
    TASKS,
)
from poolbench.telemetry.traces import start_tracing, stop_tracing

SOON_S = UNPICKLING_S / 6  # far above what an answer takes, far below what a frozen proxy takes

pytestmark = [pytest.mark.lane(name="gate")]


class Gated:
    """A running cluster with one service."""

    def __init__(
        self, collector: Collector, state: Path, http: str, token: str, metrics: str, broker: str, logs: str
    ) -> None:
        self.collector, self.state = collector, state
        self.metrics, self.broker, self.logs = metrics, broker, Path(logs)
        self.port = int(http.rpartition(":")[2])
        self.token = token
        headers = {"Authorization": f"Bearer {token}"}
        self.client = httpx.Client(base_url=f"{http}/prober", headers=headers, timeout=SOON_S, trust_env=False)

    def health(self) -> dict[str, Any]:
        answer = self.client.get("/health")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def records(self) -> list[dict[str, Any]]:
        """Return what the processes of the cluster logged as JSON."""
        lines = [line for file in self.logs.glob("worker-*.err") for line in file.read_text().splitlines()]
        return [json.loads(line) for line in lines if line.startswith('{"time"')]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=SOON_S)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Gated]:
    state = tmp_path_factory.mktemp("state")
    environment = {"POOLBENCH_LOG_FORMAT": "json", "POOLBENCH_TRACES": collector.endpoint}
    with started("tests.servers.gated", state, **environment) as places:
        made = Gated(collector, state, **places)
        # Until the service has answered once, the gate says that it is down.
        wait_until(lambda: made.client.get("/health").is_success)
        yield made


def test_slow_clients_delay_no_other_client(gated: Gated) -> None:
    """With a token and without one, and several times as many as the service has places."""
    slow = [gated.connect() for _ in range(40)]
    try:
        for number, client in enumerate(slow):
            token = gated.token if number % 2 else ""
            headers = ("Content-Type: application/json", "Content-Length: 100000")
            client.sendall(request("/prober/echo", *headers, method="POST", token=token) + b"{")
        began = time.monotonic()
        for _ in range(5):
            assert gated.health()["status"] == "ok"
        assert gated.client.post("/echo", json={"a": 1}).json() == {"a": 1}
        assert time.monotonic() - began < SOON_S
        assert [read_reply(client).status for client in slow[::2]] == [401] * 20
    finally:
        for client in slow:
            client.close()


@pytest.mark.parametrize("verb", ["/explode", "/stream"])
def test_an_exception_stays_in_the_replica(gated: Gated, verb: str) -> None:
    """The proxy would take two minutes to unpickle it, and answer nobody meanwhile."""
    began = time.monotonic()
    if verb == "/stream":
        with pytest.raises(httpx.RemoteProtocolError):
            gated.client.post(verb)
    else:
        answer = gated.client.post(verb)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    for _ in range(5):
        assert gated.health()["status"] == "ok"
    assert time.monotonic() - began < SOON_S


def test_health_answers_while_every_place_is_taken_and_work_ends_with_its_client(gated: Gated) -> None:
    before = gated.health()["ended"]
    clients = [gated.connect() for _ in range(NUM_RUNNING + 3)]
    for client in clients:
        client.sendall(request("/prober/work", method="POST", token=gated.token))
    wait_until(lambda: gated.health()["working"] == NUM_RUNNING)
    waiting: list[httpx.Response] = []
    patient = threading.Thread(target=lambda: waiting.append(gated.client.post("/echo", json={"b": 2})))
    patient.start()
    for _ in range(5):
        assert gated.health()["working"] == NUM_RUNNING
    for client in clients:
        client.close()
    # One that waits may begin before the others' end is known, and ends as they do.
    wait_until(lambda: gated.health()["working"] == 0)
    assert gated.health()["ended"] >= before + NUM_RUNNING
    patient.join(SOON_S)
    assert [answer.json() for answer in waiting] == [{"b": 2}]


def series(page: str, name: str, **labels: str) -> float:
    """Return the sum of the series with these labels on a page of metrics."""
    families = text_string_to_metric_families(page)
    samples = (sample for family in families for sample in family.samples if sample.name == name)
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def test_metrics_come_out_of_ray(gated: Gated) -> None:
    """A task that is refused, a request that is refused, and the queue, on the page that Prometheus reads."""
    queue = TaskQueue(Broker(gated.broker))
    task = Task(kind="prober.unheard", run_id="a-run", outputs={"a": "b.1"})
    queue.send(task)
    assert gated.client.post("/echo", json={}, headers={"Authorization": "Bearer wrong"}).status_code == 401
    refused = {"service": "prober", "kind": "other", "outcome": "refused"}

    def exported() -> bool:
        time.sleep(0.5)
        page = httpx.get(gated.metrics, timeout=30, trust_env=False).text
        return (
            series(page, TASKS.exported, **refused) == 1
            and series(page, HTTP_REFUSALS.exported, code="unauthorized") >= 1
            and series(page, DEAD_LETTERS.exported, service="prober") >= 1
            and series(page, f"{TASK_WAIT_SECONDS.exported}_count", service="prober") == 1
        )

    wait_until(exported)
    page = httpx.get(gated.metrics, timeout=30, trust_env=False).text
    ours = {family.name for family in text_string_to_metric_families(page) if "poolbench" in family.name}
    assert ours <= {instrument.exported.removesuffix("_total") for instrument in INSTRUMENTS}
    assert QUEUE_OLDEST_SECONDS.exported in ours
    (record,) = [each for each in gated.records() if each.get("task_id") == task.task_id and "traceback" in each]
    assert (record["run_id"], record["service"], record["level"]) == ("a-run", "prober", "ERROR")


def test_tasks_and_requests_are_traced_across_processes(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLBENCH_TRACES", gated.collector.endpoint)
    assert start_tracing("driver")
    task = Task(kind="prober.traced", outputs={"a": "b.2"})
    TaskQueue(Broker(gated.broker)).send(task)
    stop_tracing()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert gated.client.post("/echo", json={}, headers={"traceparent": parent}).status_code == 200
    spans = gated.collector.spans
    worked = wait_until(lambda: [each for each in spans if each.attributes.get("task_id") == task.task_id][1:])
    (sent,) = gated.collector.named("send prober.traced")
    assert [(each.service, each.parent_id) for each in worked] == [("poolbench-prober", sent.span_id)]
    (asked,) = wait_until(lambda: [each for each in spans if each.parent_id == parent.split("-")[2]])
    assert (asked.name, asked.trace_id) == ("POST /prober", parent.split("-")[1])


def test_the_id_of_a_request_is_in_responses_and_logs(gated: Gated) -> None:
    """Of a service, of the gate itself, and of a request that sends none or one that is not safe."""
    sent = {"X-Request-ID": "mine-42"}
    assert gated.client.post("/explode", headers=sent).headers.get_list("X-Request-ID") == ["mine-42"]
    refused = gated.client.post("/echo", json={}, headers={**sent, "Authorization": "Bearer wrong"})
    assert (refused.status_code, refused.headers.get_list("X-Request-ID")) == (401, ["mine-42"])
    for headers in ({}, {"X-Request-ID": "not safe"}):
        (made,) = gated.client.get("/health", headers=headers).headers.get_list("X-Request-ID")
        assert len(made) == 32
    found = wait_until(lambda: [each for each in gated.records() if each.get("request_id") == "mine-42"])
    assert any(each["logger"] == "poolbench.http" and "BombError" in each["traceback"] for each in found)
    of_serve = [json.loads(line) for file in (gated.logs / "serve").glob("replica_*") for line in file.open()]
    assert any(each.get("request_id") == "mine-42" for each in of_serve)


def test_the_gate_stands_in_the_proxy(gated: Gated) -> None:
    """One refusal of each part: token, body, protocol."""
    assert gated.client.post("/echo", json={}, headers={"Authorization": "Bearer wrong"}).status_code == 401
    with gated.connect() as client:
        client.sendall(request("/prober/echo", f"Content-Length: {2**31}", method="POST", token=gated.token))
        assert read_reply(client).status == 413
    with gated.connect() as client:
        upgrade = ("Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13")
        client.sendall(request("/prober/echo", *upgrade).replace(b"Connection: close", b"Connection: Upgrade"))
        assert read_reply(client).code == "unauthorized"
    with gated.connect() as client:
        client.sendall(b"GET / HTTP/1.1\r\nX-Endless: " + b"x" * 2**17)
        assert closed(client)
    nobody = httpx.get(f"http://127.0.0.1:{gated.port}/nobody", headers=gated.client.headers, timeout=SOON_S)
    assert (nobody.status_code, nobody.json()["error"]["code"]) == (404, "not_found")
