"""The gate, asked by clients that send more, less or slower than they should."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator

import pytest
from tests.servers.door import TOKEN, Door, closed, read_reply, request, serving
from tests.waiting import wait_until

POST = {"method": "POST", "token": TOKEN}
CHUNKED = "Transfer-Encoding: chunked"


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with serving() as found:
        yield found


def test_a_request_with_the_token_passes_with_its_body(door: Door) -> None:
    reply = door.ask(request("/prober/probe", body=b"x" * 1000, **POST))
    assert (reply.status, door.behind.seen[-1]["bytes"]) == (200, 1000)
    assert door.gate.bodies.held_bytes == 0


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
        assert closed(client)
    assert len(door.behind.seen) == count


@pytest.mark.parametrize(("path", "status"), [("completions", 401), ("text", 404), ("lost", 503)])
def test_errors_below_v1_have_the_openai_form(door: Door, path: str, status: int) -> None:
    token = "" if status == 401 else TOKEN
    reply = door.ask(request(f"/steerer/v1/{path}", body=b"{}", method="POST", token=token))
    assert reply.status == status
    assert set(json.loads(reply.body)["error"]) == {"message", "type", "param", "code"}


def test_two_tokens_are_none(door: Door) -> None:
    twice = [f"Authorization: Bearer {TOKEN}"]
    assert door.ask(request("/prober/probe", *twice, **POST)).status == 401


def test_many_slow_clients_without_token_delay_no_request() -> None:
    """The gate would wait ten minutes for their bodies, and the client of this test waits five for its answers."""
    with serving(body_grace_s=600, body_timeout_s=600) as door, contextlib.ExitStack() as stack:
        slow = [stack.enter_context(door.connect()) for _ in range(40)]
        for client in slow:
            client.sendall(b"POST /prober/probe HTTP/1.1\r\nHost: door\r\nContent-Length: 100000\r\n\r\n{")
        assert door.ask(request("/prober/probe", **POST)).status == 200
        wait_until(lambda: door.ask(request("/prober/health")).status == 200)
        assert all(closed(client) for client in slow)


@pytest.mark.parametrize("path", ["/prober/docs", "/prober/openapi.json", "/-/routes", "/", "/prober", "/-/other"])
def test_every_page_but_health_needs_the_token(door: Door, path: str) -> None:
    assert door.ask(request(path)).status == 401
    assert door.ask(request(path, token=TOKEN)).status == 200
    assert door.ask(request("/-/healthz")).status == 200, "the health of the proxy itself"


def test_documentation_can_be_opened_and_takes_no_body() -> None:
    with serving(open_documentation=True) as door:
        for page in ("docs", "docs/swagger-ui.css", "docs/swagger-ui-bundle.js"):
            assert door.ask(request(f"/prober/{page}")).status == 200
        assert door.ask(request("/prober/docs", body=b"x")).status == 401
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
    """The connection is not reset under a client that is still sending."""
    with door.connect() as client:
        client.sendall(request("/prober/probe", f"Content-Length: {3 * 2**20}", **POST))
        client.sendall(b"x" * 3 * 2**20)
        assert read_reply(client).status == 413


def test_a_chunked_body_is_refused_as_it_grows(door: Door) -> None:
    with door.connect() as client:
        client.sendall(request("/prober/probe", CHUNKED, **POST))
        chunk = b"10000\r\n" + b"x" * 2**16 + b"\r\n"
        for _ in range(17):
            client.sendall(chunk)
        assert read_reply(client).status == 413
    assert door.gate.bodies.held_bytes == 0


def test_a_body_that_stops_is_refused(door: Door) -> None:
    with door.connect() as client:
        client.sendall(request("/prober/probe", "Content-Length: 10", **POST) + b"12345")
        reply = read_reply(client)
        assert (reply.status, reply.code) == (408, "too_slow")
        assert "5 bytes" in reply.body.decode()


def test_a_body_that_drips_is_refused(door: Door) -> None:
    """Each byte comes quickly, and all of them too slowly."""
    with door.connect() as client:
        client.sendall(request("/prober/probe", "Content-Length: 100000", **POST))
        stop = threading.Event()

        def drip() -> None:
            while not stop.wait(0.1):
                try:
                    client.sendall(b"x")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        reply = read_reply(client)
        stop.set()
        thread.join()
        assert reply.status == 408


def test_bodies_are_bounded_together() -> None:
    """Three of 0.9 MiB fit into 3 MiB; the fourth is asked to come later, and the memory is given back."""
    with serving() as door:
        door.behind.held.set()
        size = 900 * 2**10
        clients = [door.connect() for _ in range(3)]
        for client in clients:
            client.sendall(request("/prober/hold", body=b"x" * size, **POST))
        wait_until(lambda: door.gate.bodies.held_bytes == 3 * size)
        reply = door.ask(request("/prober/probe", body=b"x" * size, **POST))
        assert (reply.status, reply.code) == (429, "busy")
        door.behind.held.clear()
        assert [read_reply(client).status for client in clients] == [200] * 3
        wait_until(lambda: door.gate.bodies.held_bytes == 0)
        for client in clients:
            client.close()


def test_requests_of_one_address_are_bounded() -> None:
    with serving(requests_per_client=3, open_documentation=True) as door:
        door.behind.held.set()
        clients = [door.connect() for _ in range(3)]
        for client in clients:
            client.sendall(request("/prober/hold", **POST))
        wait_until(lambda: len(door.behind.seen) == 3)
        reply = door.ask(request("/prober/probe", **POST))
        assert (reply.status, reply.headers.get("retry-after")) == (429, "1")
        assert door.ask(request("/prober/docs")).status == 200
        for client in clients:
            client.close()
        wait_until(lambda: door.behind.ended == ["gone"] * 3)
        wait_until(lambda: door.ask(request("/prober/probe", **POST)).status == 200)


def test_headers_that_steer_the_proxy_do_not_pass(door: Door) -> None:
    """They would switch off the proxy's time limit, and its watch for clients that leave."""
    sent = (
        "X-Request-Timeout-Seconds: 0",
        "X-Request-Disconnect-Disabled: ?1",
        "Serve_Multiplexed_Model_Id: x",
        "X-Session-Id: x",
        "X-Request-ID: bad id",
        "X-Mine: kept",
    )
    assert door.ask(request("/prober/probe", *sent, **POST)).status == 200
    assert set(door.behind.seen[-1]["headers"]) == {"host", "connection", "authorization", "x-mine"}


def test_the_proxys_own_errors_have_our_form(door: Door) -> None:
    text, lost = (door.ask(request(f"/prober/{verb}", **POST)) for verb in ("text", "lost"))
    assert (text.status, text.code) == (404, "not_found") and b"no such path" in text.body
    assert (lost.status, lost.code) == (503, "unavailable")
