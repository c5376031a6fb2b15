"""The gate in Ray Serve's own proxy, and the border of a real replica."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.servers.door import closed, read_reply, request
from tests.servers.exploding import UNPICKLING_S
from tests.servers.gated import NUM_RUNNING
from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[1]
SOON_S = UNPICKLING_S / 6  # far above what an answer takes, far below what a frozen proxy takes

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


class Gated:
    """A running cluster with one service."""

    def __init__(self, state: Path, http: str, token: str) -> None:
        self.state = state
        self.port = int(http.rpartition(":")[2])
        self.token = token
        headers = {"Authorization": f"Bearer {token}"}
        self.client = httpx.Client(base_url=f"{http}/prober", headers=headers, timeout=SOON_S, trust_env=False)

    def health(self) -> dict[str, Any]:
        answer = self.client.get("/health")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=SOON_S)


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gated]:
    state = tmp_path_factory.mktemp("state")
    environment = {**os.environ, "POOLBENCH_STATE": str(state), "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "tests.servers.gated", str(state)]
    with (state / "gated.log").open("w") as log:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}
        with subprocess.Popen(command, env=environment, cwd=REPOSITORY, **pipes) as process:
            assert process.stdin is not None and process.stdout is not None
            lines = iter(process.stdout.readline, "")
            found = next((line for line in lines if line.startswith("{")), "")
            assert found, (state / "gated.log").read_text()[-3000:]
            yield Gated(state, **json.loads(found))
            process.stdin.close()


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


def test_the_gate_stands_in_the_proxy(gated: Gated) -> None:
    """One refusal of each part: protocol, headers, body."""
    assert gated.client.post("/echo", json={}, headers={"Authorization": "Bearer wrong"}).status_code == 401
    with gated.connect() as client:
        client.sendall(request("/prober/echo", f"Content-Length: {2**31}", method="POST", token=gated.token))
        assert read_reply(client).status == 413
    with gated.connect() as client:
        upgrade = ("Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13")
        client.sendall(request("/prober/echo", *upgrade).replace(b"Connection: close", b"Connection: Upgrade"))
        assert read_reply(client).code == "upgrade"
        assert closed(client)
    nobody = httpx.get(f"http://127.0.0.1:{gated.port}/nobody", headers=gated.client.headers, timeout=SOON_S)
    assert (nobody.status_code, nobody.json()["error"]["code"]) == (404, "not_found")


def test_the_token_is_replaced_without_a_restart(gated: Gated) -> None:
    """Gate and replica accept the old token, then both, then only the new one. This test comes last."""
    new = "b" * 64

    def status(token: str) -> int:
        return gated.client.post("/echo", json={}, headers={"Authorization": f"Bearer {token}"}).status_code

    assert [status(gated.token), status(new)] == [200, 401]
    (gated.state / "token_next").write_text(new)
    wait_until(lambda: status(new) == 200)
    assert status(gated.token) == 200
    (gated.state / "token_next").rename(gated.state / "token")
    wait_until(lambda: status(gated.token) == 401)
    assert status(new) == 200
    details = {"Authorization": f"Bearer {new}"}
    wait_until(lambda: "working" in gated.client.get("/health", headers=details).json())
    assert gated.client.get("/health", headers={"Authorization": f"Bearer {gated.token}"}).json() == {"status": "ok"}
