"""The server's protocol under the gate: what is not HTTP/1.1, headers without end, too many connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.servers.door import TOKEN, Door, closed, kept_open, read_reply, request, serving
from tests.waiting import wait_until

POST = {"method": "POST", "token": TOKEN}
UPGRADE = ("Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13")


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with serving() as running_door:
        yield running_door


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


def test_trailers_are_no_headers(door: Door) -> None:
    body = b"1\r\nx\r\n0\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
    assert door.ask(request("/prober/probe", "Transfer-Encoding: chunked", method="POST") + body).status == 401


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


def test_a_connection_serves_several_requests(door: Door) -> None:
    with door.connect() as client:
        for _ in range(3):
            client.sendall(kept_open(request("/prober/probe", body=b"xyz", **POST)))
            assert read_reply(client).status == 200
