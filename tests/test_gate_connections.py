"""The server's protocol: connections that send no request, too much of one, or do not read their answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.servers.door import TOKEN, Door, closed, read_reply, request, serving
from tests.waiting import wait_until

POST = {"method": "POST", "token": TOKEN}
UPGRADE = ("Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13")


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with serving() as found:
        yield found


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET /prober/health HTTP/1.1\r\nHost: door\r\nX-A"])
def test_headers_that_do_not_come_end_the_connection(door: Door, sent: bytes) -> None:
    with door.connect() as client:
        client.sendall(sent)
        if sent.startswith(b"GET"):
            reply = read_reply(client)
            assert (reply.status, reply.code) == (408, "too_slow")
        assert closed(client)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request("/" + "x" * 9000), 414),
        (request("/prober/health", "X-Long: " + "x" * 40_000), 431),
        (request("/prober/health", *(f"X-{number}: x" for number in range(120))), 431),
        (request("/prober/health", *UPGRADE).replace(b"Connection: close", b"Connection: Upgrade"), 400),
        (b"CONNECT door:80 HTTP/1.1\r\nHost: door\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: door\r\n\r\n", 400),
        (b"GET /prober/health HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_of_ours_is_refused_at_once(door: Door, sent: bytes, status: int) -> None:
    count = len(door.behind.seen)
    with door.connect() as client:
        client.sendall(sent)
        reply = read_reply(client)
        assert reply.status == status and reply.code in ("http", "upgrade")
        assert closed(client)
    assert len(door.behind.seen) == count


def test_a_header_without_end_is_refused(door: Door) -> None:
    """The parser keeps an unfinished value, so it counts before it is complete."""
    with door.connect() as client:
        client.sendall(b"GET / HTTP/1.1\r\nX-Endless: ")
        try:
            for _ in range(64):
                client.sendall(b"x" * 2**16)
        except OSError:
            pass
        assert closed(client)


@pytest.mark.parametrize("surplus", [b"X-T: " + b"x" * 2**16 + b"\r\n", b"X-Endless: " + b"x" * 2**17])
def test_trailers_are_bounded(door: Door, surplus: bytes) -> None:
    with door.connect() as client:
        client.sendall(request("/prober/probe", "Transfer-Encoding: chunked", **POST) + b"1\r\nx\r\n0\r\n")
        try:
            for _ in range(8):
                client.sendall(surplus)
            assert read_reply(client).status in (400, 431)
        except OSError:
            pass
        assert closed(client)


def test_trailers_are_no_headers(door: Door) -> None:
    body = b"1\r\nx\r\n0\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
    reply = door.ask(request("/prober/probe", "Transfer-Encoding: chunked", method="POST") + body)
    assert reply.status == 401


def test_bytes_after_the_last_request_are_not_read_for_ever(door: Door) -> None:
    door.behind.held.set()
    with door.connect() as client:
        client.sendall(request("/prober/hold", **POST))
        try:
            for _ in range(64):
                client.sendall(b"\r\n" * 2**15)
        except OSError:
            pass
        assert closed(client)
    door.behind.held.clear()


def test_requests_ahead_of_their_answers_are_bounded(door: Door) -> None:
    door.behind.held.set()
    one = request("/prober/hold", **POST).replace(b"Connection: close\r\n", b"")
    with door.connect() as client:
        client.sendall(one * 100)
        assert closed(client)
    door.behind.held.clear()


def test_a_client_that_does_not_read_is_dropped() -> None:
    with serving() as door:
        door.behind.answer_bytes = 64 * 2**20
        with door.connect(receive_buffer=4096) as client:
            client.sendall(request("/prober/probe", **POST))
            read = client.recv(100)
            assert read.startswith(b"HTTP/1.1 200")
            wait_until(lambda: len(door.connections) == 0)
            assert closed(client)


def test_connections_of_one_address_are_bounded() -> None:
    """One that has not asked for anything makes room; those with a request under way do not."""
    with serving(connections_per_client=3, header_timeout_s=600) as door:
        first, *others = [door.connect() for _ in range(4)]
        assert closed(first)
        door.behind.held.set()
        for client in others:
            client.sendall(request("/prober/hold", **POST))
        wait_until(lambda: len(door.behind.seen) == 3)
        with door.connect() as refused:
            assert read_reply(refused).status == 429
        door.behind.held.clear()
        assert [read_reply(client).status for client in others] == [200] * 3


def test_a_connection_serves_several_requests(door: Door) -> None:
    kept = request("/prober/probe", body=b"xyz", **POST).replace(b"Connection: close\r\n", b"")
    with door.connect() as client:
        for _ in range(3):
            client.sendall(kept)
            assert read_reply(client).status == 200
