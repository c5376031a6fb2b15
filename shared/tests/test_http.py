"""The HTTP face of a service and the border of a replica: token, errors, turns, and clients that leave."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient
from pydantic import BaseModel
from tests.waiting import until

from poolbench.cancellation import WorkCancelledError, check_cancelled
from poolbench.errors import ConfigError, UnknownStrategyError
from poolbench.http import border as border_module
from poolbench.http.api import build_api
from poolbench.http.border import Border, BorderLimits
from poolbench.http.openapi import errors
from poolbench.settings import HttpSettings

TOKEN = "a-test-token"
GOOD = {"Authorization": f"Bearer {TOKEN}"}


class Question(BaseModel):
    """A request with one field."""

    x: int


class Halving:
    """A service with one verb, which fails in every way a verb may."""

    name = "prober"

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}

    def routes(self, router: APIRouter) -> None:
        @router.post("/half", responses={status: answer for status, answer in errors().items() if status != 422})
        def half(question: Question) -> dict[str, float]:
            if question.x == 13:
                raise UnknownStrategyError("A1_meen", ["A1_mean"])
            return {"half": 10 / question.x}

        @router.get("/half", responses=errors(body=False))
        def last() -> dict[str, float]:
            return {"half": 0}

    def health(self) -> dict[str, Any]:
        return {"loaded": "nothing"}


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(build_api(Halving(), TOKEN), raise_server_exceptions=False)


def test_a_verb_answers_with_the_token_only_and_none_starts_without(client: TestClient) -> None:
    assert client.post("/half", json={"x": 4}, headers=GOOD).json() == {"half": 2.5}
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
        refused = client.post("/half", json={"x": 4}, headers=headers)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "unauthorized"
        assert refused.headers["www-authenticate"] == "Bearer"
    with pytest.raises(ConfigError, match="POOLBENCH_TOKEN"):
        build_api(Halving(), "")


def test_health_says_more_to_who_holds_the_token(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    found = client.get("/health", headers=GOOD).json()
    assert {"version", "steps", "time_s", "disk_free_bytes"} <= found.pop("replica").keys()
    assert found == {"status": "ok", "loaded": "nothing"}


def test_the_documents_need_no_other_host_and_have_our_error_bodies_only(client: TestClient) -> None:
    page = client.get("/docs").text
    links = re.findall(r"""(?:href|src)=["']([^"']+)["']|url: '([^']+)'""", page)
    found = {link or url for link, url in links}
    assert found == {"openapi.json", "docs/swagger-ui-bundle.js", "docs/swagger-ui.css", "docs/favicon.png"}
    assert all(client.get(f"/{link}").status_code == 200 for link in found)
    assert "https://" not in page
    described = client.get("/openapi.json").json()
    assert "422" not in described["paths"]["/half"]["post"]["responses"]  # this verb answers another status
    assert not {"HTTPValidationError", "ValidationError"} & described["components"]["schemas"].keys()
    unauthorized = described["paths"]["/half"]["get"]["responses"]["401"]
    assert unauthorized["headers"]["WWW-Authenticate"]["required"]
    assert unauthorized["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorBody")


def test_memory_that_runs_out_while_a_body_is_read_is_not_the_clients_fault(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_: Request) -> None:
        raise MemoryError

    monkeypatch.setattr(Request, "json", fails)
    refused = client.post("/half", json={"x": 4}, headers=GOOD)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "out_of_memory")


def test_a_wrong_method_is_answered_with_the_allowed_ones(client: TestClient) -> None:
    refused = client.put("/half", headers=GOOD)
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, POST")
    assert refused.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "said"),
    [
        ("/half", {"x": "many"}, 422, "input", "body.x"),
        ("/half", {"x": 13}, 404, "unknown_strategy", "did you mean A1_mean"),
        ("/half", {"x": 0}, 500, "internal", "ZeroDivisionError"),
        ("/none", {}, 404, "not_found", "Not Found"),
    ],
)
def test_errors_are_json_with_a_code(
    client: TestClient, path: str, body: dict[str, Any], status: int, code: str, said: str
) -> None:
    answer = client.post(path, json=body, headers=GOOD)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert said in answer.json()["error"]["message"]
    assert "Traceback" not in answer.text


def test_a_body_that_is_not_said_to_be_json_names_the_header(client: TestClient) -> None:
    """As `curl -d` sends it."""
    for headers in (GOOD, GOOD | {"Content-Type": "application/x-www-form-urlencoded"}):
        answer = client.post("/half", content=b'{"x": 4}', headers=headers)
        assert answer.status_code == 422
        assert "Content-Type: application/json" in answer.json()["error"]["message"]
    for kind in ("application/json", "application/json; charset=utf-8"):
        answer = client.post("/half", content=b'\xef\xbb\xbf{"x": 4}', headers=GOOD | {"Content-Type": kind})
        assert answer.json() == {"half": 2.5}


class ForeignError(Exception):
    """An exception that only this module can unpickle."""


class PanicError(BaseException):
    """As a panic of Rust arrives in Python: no Exception."""


RAISED = {
    "foreign": ForeignError,
    "panic": PanicError,
    "exit": SystemExit,
    "memory": MemoryError,
    "recursion": RecursionError,
}


class Exploding:
    """A service whose verbs fail, or work until they are asked to end."""

    name = "prober"

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}
        self.started = threading.Semaphore(0)
        self.ended: list[str] = []
        self.release = threading.Event()

    def routes(self, router: APIRouter) -> None:
        @router.post("/explode/{kind}")
        def explode(kind: str) -> None:
            raise RAISED[kind]("a secret")

        @router.post("/explode_async/{kind}")
        async def explode_async(kind: str) -> None:
            raise RAISED[kind]("a secret")

        @router.post("/parse")
        def parse(body: dict[str, Any]) -> int:
            return len(body)

        @router.post("/stream/{media}")
        async def stream(media: str) -> StreamingResponse:
            async def parts() -> AsyncIterator[bytes]:
                yield b"data: 1\n\n"
                raise ForeignError("a secret")

            return StreamingResponse(parts(), media_type=f"text/{media}")

        @router.post("/work")
        def work() -> str:
            self.started.release()
            try:
                while not self.release.wait(0.01):
                    check_cancelled()
            except WorkCancelledError as error:
                self.ended.append(str(error))
                raise
            self.ended.append("released")
            return "done"

    def health(self) -> dict[str, Any]:
        return {}


class Client:
    """Speaks ASGI to a border, as Serve's replica does."""

    def __init__(self, border: Border) -> None:
        self.border = border

    def start(self, path: str, body: bytes = b"{}", method: str = "POST") -> Call:
        headers = [(b"authorization", f"Bearer {TOKEN}".encode()), (b"content-type", b"application/json")]
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
            "method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "scheme": "http", "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
        }  # fmt: skip
        return Call(self.border, scope, body)

    async def ask(self, path: str, body: bytes = b"{}", method: str = "POST") -> Call:
        call = self.start(path, body, method)
        await call.task
        return call


class Call:
    """One request under way."""

    def __init__(self, border: Border, scope: dict[str, Any], body: bytes) -> None:
        self.sent: list[Any] = []
        self.left = asyncio.Event()
        self._bodies = [body]
        self.task = asyncio.create_task(border(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._bodies:
            return {"type": "http.request", "body": self._bodies.pop(), "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def whole(self) -> bool:
        return self.sent[-1]["type"] == "http.response.body" and not self.sent[-1].get("more_body", False)


def bordered(service: Exploding, **limits: Any) -> Client:
    return Client(Border(build_api(service, TOKEN), BorderLimits(**limits)))


@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("verb", ["explode", "explode_async"])
def test_no_exception_leaves_a_verb(kind: str, verb: str) -> None:
    async def run() -> None:
        call = await bordered(Exploding()).ask(f"/{verb}/{kind}")
        assert call.status in (500, 503) and call.whole
        assert b'"error"' in call.body and b"secret" not in call.body

    asyncio.run(run())


@pytest.mark.parametrize(
    "body", [b"{", b"\xff\xfe\x00", b"[" * 200_000, b'{"a": ' * 100_000, b'"\\ud800"', b"NaN", b""]
)
def test_bodies_that_cannot_be_parsed_are_refused(body: bytes) -> None:
    async def run() -> None:
        call = await bordered(Exploding()).ask("/parse", body)
        assert call.status in (400, 422) and call.whole and b'"error"' in call.body

    asyncio.run(run())


def test_a_stream_that_fails_midway_is_seen_as_broken() -> None:
    """A stream of events ends with an error; any other has no end, so that the server closes the connection."""

    async def run() -> None:
        events, plain = [await bordered(Exploding()).ask(f"/stream/{media}") for media in ("event-stream", "plain")]
        assert events.body.startswith(b'data: 1\n\ndata: {"error"') and b"ForeignError" in events.body
        assert plain.body == b"data: 1\n\n"
        assert not events.whole and not plain.whole
        assert b"secret" not in events.body

    asyncio.run(run())


@pytest.mark.parametrize("leaves", ["message", "cancelled"])
def test_work_ends_when_its_client_leaves(leaves: str) -> None:
    """Serve reports it by a message and by cancelling the request's task; either suffices."""

    async def run() -> None:
        service = Exploding()
        client = bordered(service, running=1)
        call = client.start("/work")
        await until(lambda: service.started.acquire(blocking=False))
        if leaves == "message":
            call.left.set()
        else:
            call.task.cancel()
        await until(lambda: service.ended == ["the client has gone"])
        service.release.set()
        assert (await client.ask("/work")).status == 200

    asyncio.run(run())


def test_work_ends_at_its_deadline_with_an_answer() -> None:
    async def run() -> None:
        service = Exploding()
        call = await bordered(service, deadline_s=0.3).ask("/work")
        assert call.status == 504 and b'"deadline"' in call.body and b"0.3 s" in call.body
        await until(lambda: service.ended)

    asyncio.run(run())
    assert BorderLimits().deadline_s == HttpSettings.load().deadline_s


def test_verbs_wait_for_their_turn_and_health_does_not() -> None:
    async def run() -> None:
        service = Exploding()
        client = bordered(service, running=2, waiting=1)
        calls = [client.start("/work") for _ in range(3)]
        for _ in range(2):
            await until(lambda: service.started.acquire(blocking=False))
        assert (await client.ask("/health", b"", "GET")).status == 200
        refused = await client.ask("/work")
        assert refused.status == 429 and b'"busy"' in refused.body
        calls[2].left.set()  # one that waits and leaves frees its place and never starts
        await calls[2].task
        fourth = client.start("/work")
        service.release.set()
        await asyncio.gather(*(call.task for call in (*calls[:2], fourth)))
        assert [call.status for call in (*calls[:2], fourth)] == [200] * 3
        assert service.ended == ["released"] * 3

    asyncio.run(run())


def test_the_load_is_the_mean_number_of_verbs_and_knows_no_health(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(border_module.time, "monotonic", lambda: now[0])
    load = border_module.Load()
    with load:
        now[0] += 1
        with load:
            now[0] += 1
        assert load.take_mean() == pytest.approx(1.5)
        now[0] += 2
    now[0] += 6
    assert load.take_mean() == pytest.approx(0.25)
    now[0] += 1
    assert load.take_mean() == 0.0  # exactly: any more would ask for a replica
    monkeypatch.undo()

    async def run() -> None:
        client = bordered(Exploding())
        client.border.load.take_mean()
        await client.ask("/health", b"", "GET")
        assert client.border.load.take_mean() == 0.0
        await client.ask("/parse")
        assert client.border.load.take_mean() > 0.0

    asyncio.run(run())


def test_a_task_pauses_for_short_requests_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        inside, release = asyncio.Event(), asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            inside.set()
            await release.wait()

        client = Client(Border(app, BorderLimits()))
        await asyncio.to_thread(client.border.pause_for_requests)  # there is none
        asked = client.start("/embed")
        await inside.wait()
        pausing = asyncio.create_task(asyncio.to_thread(client.border.pause_for_requests))
        await asyncio.sleep(0.05)
        assert not pausing.done()
        release.set()
        await asked.task
        await pausing
        inside.clear()
        release.clear()
        monkeypatch.setattr(border_module, "_SHORT_S", 0.0)
        asked = client.start("/embed")
        await inside.wait()
        await asyncio.to_thread(client.border.pause_for_requests)  # it is not a short one
        release.set()
        await asked.task

    asyncio.run(scenario())
