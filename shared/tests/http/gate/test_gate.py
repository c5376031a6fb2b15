"""The gate: requests without a token, protocol, health, replaced tokens, limits of every verb."""

import json
import re
from collections.abc import Iterator

import pytest
from tests.pages import site_maker
from tests.servers.door import TOKEN, Door, closed, kept_open, read_reply, request, serving
from tests.waiting import wait_until

from poolbench.settings import GateSettings

POST = {"method": "POST", "token": TOKEN}
CHUNKED = "Transfer-Encoding: chunked"


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with serving() as running_door:
        yield running_door


def test_a_request_with_the_token_passes_with_its_body(door: Door) -> None:
    reply = door.ask(request("/prober/probe", body=b"x" * 1000, **POST))
    assert (reply.status, door.behind.seen[-1]["bytes"]) == (200, 1000)
    assert door.gate.room.used_bytes == 0


@pytest.mark.parametrize(
    "header", ["", "Authorization: Bearer wrong", f"Authorization: Basic {TOKEN}", "Authorization:"]
)
def test_without_the_token_the_body_is_not_awaited(door: Door, header: str) -> None:
    """The answer comes while the body is still missing, and nothing reaches the services."""
    count = len(door.behind.seen)
    headers = [header] if header else []
    with door.connect() as client:
        client.sendall(request("/prober/probe", "Content-Length: 1000000", *headers, method="POST") + b"{")
        reply = read_reply(client)
        assert (reply.status, reply.code) == (401, "unauthorized")
        assert reply.headers["www-authenticate"] == "Bearer"
    assert len(door.behind.seen) == count


@pytest.mark.parametrize(("path", "status"), [("completions", 401), ("text", 404), ("lost", 503)])
def test_errors_below_v1_have_the_openai_form(door: Door, path: str, status: int) -> None:
    token = "" if status == 401 else TOKEN
    reply = door.ask(request(f"/steerer/v1/{path}", body=b"{}", method="POST", token=token))
    assert reply.status == status
    assert set(json.loads(reply.body)["error"]) == {"message", "type", "param", "code"}


def test_two_tokens_and_one_in_a_trailer_are_none(door: Door) -> None:
    twice = [f"Authorization: Bearer {TOKEN}"]
    assert door.ask(request("/prober/probe", *twice, **POST)).status == 401
    body = b"1\r\nx\r\n0\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
    assert door.ask(request("/prober/probe", "Transfer-Encoding: chunked", method="POST") + body).status == 401


@pytest.mark.parametrize("path", ["/prober/docs", "/prober/openapi.json", "/-/routes", "/", "/prober", "/-/other"])
def test_every_page_but_health_needs_the_token(door: Door, path: str) -> None:
    assert door.ask(request(path)).status == 401
    assert door.ask(request(path, token=TOKEN)).status == 200
    assert door.ask(request("/-/healthz")).status == 200, "the health of the proxy itself"


def test_documentation_can_be_opened() -> None:
    with serving(open_documentation=True) as door:
        for page in ("docs", "docs/swagger-ui.css", "docs/swagger-ui-bundle.js"):
            assert door.ask(request(f"/prober/{page}")).status == 200
        assert door.ask(request("/nobody/docs")).status == 401


@pytest.mark.parametrize(("kind", "allowed"), [("application/json", 1), ("application/octet-stream", 2)])
def test_a_declared_body_that_is_too_large_is_refused_unread(door: Door, kind: str, allowed: int) -> None:
    size = allowed * 2**20
    kept = door.ask(request("/steerer/vectors", f"Content-Type: {kind}", body=b"x" * size, **POST))
    assert kept.status == 200
    with door.connect() as client:
        headers = (f"Content-Type: {kind}", f"Content-Length: {size + 1}")
        client.sendall(request("/steerer/vectors", *headers, **POST))
        reply = read_reply(client)
        assert (reply.status, reply.code) == (413, "too_large")
        assert str(size + 1) in reply.body.decode() and f"{allowed} MiB" in reply.body.decode()


def test_a_client_that_sends_on_reads_its_refusal(door: Door) -> None:
    """The connection is not reset under a client that is still sending, and serves its next request."""
    with door.connect() as client:
        client.sendall(kept_open(request("/prober/probe", f"Content-Length: {3 * 2**20}", **POST)))
        client.sendall(b"x" * 3 * 2**20)
        assert read_reply(client).status == 413
        client.sendall(request("/prober/probe", **POST))
        assert read_reply(client).status == 200


def test_a_chunked_body_is_refused_as_it_grows(door: Door) -> None:
    with door.connect() as client:
        client.sendall(kept_open(request("/prober/probe", CHUNKED, **POST)))
        chunk = b"10000\r\n" + b"x" * 2**16 + b"\r\n"
        for _ in range(17):
            client.sendall(chunk)
        assert read_reply(client).status == 413
    assert door.gate.room.used_bytes == 0


def test_bodies_are_bounded_together() -> None:
    """Three of 0.9 MiB fit into 3 MiB; the fourth is asked to come later, and the memory is given back."""
    with serving() as door:
        door.behind.held.set()
        size = 900 * 2**10
        clients = [door.connect() for _ in range(3)]
        for client in clients:
            client.sendall(request("/prober/hold", body=b"x" * size, **POST))
        wait_until(lambda: door.gate.room.used_bytes == 3 * size)
        reply = door.ask(request("/prober/probe", body=b"x" * size, **POST))
        assert (reply.status, reply.code) == (429, "busy")
        door.behind.held.clear()
        assert [read_reply(client).status for client in clients] == [200] * 3
        wait_until(lambda: door.gate.room.used_bytes == 0)
        for client in clients:
            client.close()


def test_bodies_without_a_token_leave_room_for_others() -> None:
    """The console has an eighth of 3 MiB."""
    with serving() as door:
        door.behind.held.set()
        size = 300 * 2**10
        with door.connect() as stranger:
            stranger.sendall(request("/console/hold", body=b"x" * size, method="POST"))
            wait_until(lambda: door.gate.open_room.used_bytes == size)
            reply = door.ask(request("/console/hold", body=b"x" * size, method="POST"))
            assert (reply.status, reply.code) == (429, "busy")
            assert door.gate.room.used_bytes == 0
            door.behind.held.clear()
            read_reply(stranger)
        wait_until(lambda: door.gate.open_room.used_bytes == 0)


def test_headers_that_steer_the_proxy_do_not_pass(door: Door) -> None:
    """They would switch off the proxy's time limit, and its watch for clients that leave."""
    sent = (
        "X-Request-Timeout-Seconds: 0",
        "X-Request-Disconnect-Disabled: ?1",
        "Serve_Multiplexed_Model_Id: x",
        "X-Session-Id: x",
        "X-Mine: kept",
    )
    assert door.ask(request("/prober/probe", *sent, **POST)).status == 200
    assert set(door.behind.seen[-1]["headers"]) == {"host", "connection", "authorization", "x-mine"}


def test_the_proxys_own_errors_have_our_form(door: Door) -> None:
    text, lost = (door.ask(request(f"/prober/{verb}", **POST)) for verb in ("text", "lost"))
    assert (text.status, text.code) == (404, "not_found") and b"no such path" in text.body
    assert (lost.status, lost.code) == (503, "unavailable")


UPGRADE = ("Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: door\r\n\r\n",
        b"GET /prober/probe HTTP/1.1\r\nHost: door\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"GET /prober/probe HTTP/1.1\r\nHost: door\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /prober/probe HTTP/1.1\r\nHost: door\r\nTransfer-Encoding: gzip\r\n\r\n",
    ],
)
def test_what_is_not_valid_http_is_refused_at_once(door: Door, sent: bytes) -> None:
    count = len(door.behind.seen)
    with door.connect() as client:
        client.sendall(sent)
        assert read_reply(client).status == 400
        assert closed(client)
    assert len(door.behind.seen) == count


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP/1.1\r\nX-Endless: ",
        request("/prober/probe", "Transfer-Encoding: chunked", **POST) + b"1\r\nx\r\n0\r\nX-Endless: ",
    ],
)
def test_headers_and_trailers_are_bounded(door: Door, start: bytes) -> None:
    """What is not complete is kept in memory, so it counts before it is complete."""
    count = len(door.behind.seen)
    with door.connect() as client:
        client.sendall(start)
        try:
            for _ in range(64):
                client.sendall(b"x" * 2**16)
        except OSError:
            pass
        assert closed(client)
    assert len(door.behind.seen) == count


@pytest.mark.parametrize(("token", "status"), [("", 401), (TOKEN, 200)])
def test_an_upgrade_is_an_ordinary_request(door: Door, token: str, status: int) -> None:
    sent = request("/prober/probe", *UPGRADE, token=token).replace(b"Connection: close", b"Connection: Upgrade")
    with door.connect() as client:
        client.sendall(sent)
        assert read_reply(client).status == status
    assert {request["kind"] for request in door.behind.seen} <= {"http"}


def test_one_request_of_a_connection_is_answered_at_a_time() -> None:
    """Those that were sent ahead of their answers are not read, and answered in turn."""
    with serving() as door:
        door.behind.held.set()
        with door.connect() as client:
            client.sendall(kept_open(request("/prober/hold", **POST)) * 20)
            wait_until(lambda: door.behind.seen)
            assert door.ask(request("/prober/probe", **POST)).status == 200
            assert [request["path"] for request in door.behind.seen] == ["/prober/hold", "/prober/probe"]
            door.behind.held.clear()
            wait_until(lambda: len(door.behind.seen) == 21)


def test_requests_beyond_the_limit_of_connections_are_refused() -> None:
    with serving(max_connections=4) as door:
        clients = [door.connect() for _ in range(3)]
        wait_until(lambda: door.ask(request("/prober/probe", **POST)).status == 503)
        for client in clients:
            client.close()
        wait_until(lambda: door.ask(request("/prober/probe", **POST)).status == 200)


def test_every_limit_is_documented_with_its_default() -> None:
    docs = site_maker()
    page = docs.with_parts("operations/settings.md", docs.reference.TABLES)
    documented = dict(re.findall(r"^\| `(POOLBENCH_GATE_\w+)` \| .* \| (\S+) \|$", page, re.MULTILINE))
    fields = GateSettings.model_fields.items()
    shown = {name: "off" if field.default is False else f"{field.default:g}" for name, field in fields}
    assert documented == {f"POOLBENCH_GATE_{name.upper()}": default for name, default in shown.items()}
