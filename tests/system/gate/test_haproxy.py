"""What only the proxy bounds: slow clients, floods, framing, pipelines, connections. A real HAProxy, a real gate."""

import asyncio
import random
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.servers import haproxy
from tests.servers.door import TOKEN, Door, Reply, closed, kept_open, read_reply, request, serving
from tests.trials.hostile.case import Case, Outcome
from tests.trials.hostile.send import Sender
from tests.trials.hostile.wire import ABUSES
from tests.waiting import PATIENCE_S, wait_until

pytestmark = haproxy.NEEDED
POST = {"method": "POST", "token": TOKEN}
OTHER = "127.0.0.9"


@dataclass
class Proxied:
    """A gate behind the proxy."""

    port: int
    door: Door

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        """A connection to the proxy from one of the addresses of this machine."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S, source_address=(source, 0))

    def ask(self, raw: bytes, source: str = "127.0.0.1") -> Reply:
        """Send bytes on a connection of its own, and read one answer."""
        with self.connect(source) as client:
            client.sendall(raw)
            return read_reply(client)

    def serves(self, source: str = OTHER) -> bool:
        """Return whether a request of this address reaches the service."""
        return self.ask(request("/prober/probe", body=b"{}", **POST), source).status == 200


@contextmanager
def proxied(folder: Path, **limits: str) -> Iterator[Proxied]:
    quick = {"REQUEST_TIME": "1s", "CLIENT_PAUSE": "2s", **limits}
    with serving() as door, haproxy.before(door.port, folder / "haproxy.log", **quick) as port:
        yield Proxied(port, door)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    with proxied(tmp_path_factory.mktemp("haproxy")) as running_proxy:
        yield running_proxy


def test_requests_pass_with_their_token_body_and_errors(network: Proxied) -> None:
    assert network.serves()
    large = network.ask(request("/prober/probe", body=b"x" * 500_000, **POST))
    assert (large.status, network.door.behind.seen[-1]["bytes"]) == (200, 500_000)
    assert network.ask(request("/prober/probe", method="POST")).code == "unauthorized"
    assert network.ask(request("/prober/probe", body=b"x" * 3 * 2**20, **POST)).code == "too_large"
    wait_until(lambda: network.ask(request("/prober/health")).status == 200)


def test_connections_without_a_request_and_clients_that_do_not_read_are_closed(network: Proxied) -> None:
    with network.connect() as silent:
        assert closed(silent)
    network.door.behind.answer_bytes = 64 * 2**20
    try:
        with network.connect() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(request("/prober/probe", **POST))
            assert client.recv(100).startswith(b"HTTP/1.1 200")
            wait_until(lambda: not _connected(client))
    finally:
        network.door.behind.answer_bytes = 0


def _is_open(client: socket.socket) -> bool:
    """Return whether the other side has left a connection alone: then there is nothing to read, and no end."""
    return not select.select([client], [], [], 0)[0]


def _connected(client: socket.socket) -> bool:
    """Return whether the other side has not ended the connection; nothing is read."""
    try:
        client.send(b" ")
    except OSError:
        return False
    return True


#: Whose end does not come within the time that the proxy allows.
SLOW = (
    b"GET /prober/health HTTP/1.1\r\nHost: door\r\nX-A",
    request("/prober/probe", "Content-Length: 10", **POST) + b"12345",
)


@pytest.mark.parametrize(
    "sent",
    [
        *SLOW,
        request("/prober/probe", "Content-Length: 5", "Content-Length: 6", **POST) + b"123456",
        request("/prober/probe", "Content-Length: 5, 6", **POST) + b"123456",
        request("/prober/probe", "Content-Length: +5", **POST) + b"12345",
        request("/prober/probe", "Transfer-Encoding: chunked", **POST) + b"zz\r\nhello\r\n0\r\n\r\n",
        request("/prober/probe", "Transfer-Encoding: chunked", **POST) + b"ffffffffffffffffff\r\nhello",
        request("/prober/probe", "Transfer-Encoding : chunked", **POST) + b"0\r\n\r\n",
        request("/prober/probe", "X-Long: " + "x" * 40_000, **POST),
        request("/prober/probe", *(f"X-{number}: x" for number in range(200)), **POST),
        request("/" + "x" * 20_000, **POST),
        request("/prober/probe", "Upgrade: websocket", **POST),
        b"CONNECT door:80 HTTP/1.1\r\nHost: door\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
def test_slow_requests_and_those_that_two_readers_understand_differently_are_refused(
    network: Proxied, sent: bytes
) -> None:
    count = len(network.door.behind.seen)
    with network.connect() as client:
        client.sendall(sent)
        status = read_reply(client).status
        assert status == 408 if sent in SLOW else 400 <= status < 500
        assert closed(client)
    assert len(network.door.behind.seen) == count


def test_nothing_is_smuggled_behind_two_lengths(network: Proxied) -> None:
    """The services see one length, and what follows it as a request of its own, which needs the token."""
    hidden = b"0\r\n\r\nPOST /prober/hidden HTTP/1.1\r\nHost: door\r\n\r\n"
    lengths = ("Transfer-Encoding: chunked", f"Content-Length: {len(hidden)}")
    with network.connect() as client:
        client.sendall(kept_open(request("/prober/probe", *lengths, **POST)) + hidden)
        read_reply(client)
        closed(client)
    assert all(request["path"] != "/prober/hidden" for request in network.door.behind.seen)
    assert network.serves()


def test_headers_that_other_readers_rename_are_removed(network: Proxied) -> None:
    assert network.ask(request("/prober/probe", "X_Under: x", "X-Plain: x", **POST)).status == 200
    headers = network.door.behind.seen[-1]["headers"]
    assert "x-plain" in headers and "x_under" not in headers


def test_a_flood_from_one_address_is_refused_and_others_are_served(tmp_path: Path) -> None:
    with proxied(tmp_path, ADDRESS_REQUESTS="20") as network:
        statuses = [network.ask(request("/prober/probe", **POST)).status for _ in range(30)]
        assert statuses[:10] == [200] * 10 and statuses[-1] == 429
        refused = network.ask(request("/prober/probe", **POST))
        assert (refused.code, refused.headers["retry-after"]) == ("busy", "10")
        assert network.serves(OTHER)


def test_connections_of_one_address_are_bounded_and_others_are_served(tmp_path: Path) -> None:
    patient = {"REQUEST_TIME": "600s", "CLIENT_PAUSE": "600s"}
    with proxied(tmp_path, ADDRESS_CONNECTIONS="5", **patient) as network, ExitStack() as stack:
        clients = []
        for _ in range(12):
            with suppress(ConnectionResetError):  # the proxy may refuse one before the kernel reports it as made
                clients.append(stack.enter_context(network.connect()))
        assert len(clients) >= 5
        wait_until(lambda: sum(map(_is_open, clients)) <= 5)
        assert network.serves(OTHER)
        survivor = next(client for client in clients if _is_open(client))
        survivor.sendall(request("/prober/probe", **POST))
        assert read_reply(survivor).status == 200


def test_connections_together_are_bounded(tmp_path: Path) -> None:
    """One more waits in the kernel until another ends; those that ask for nothing end by themselves."""
    with proxied(tmp_path, CONNECTIONS="5") as network, ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(network.connect())
        assert network.serves(OTHER)


def test_the_abuses_of_the_hostile_trial_harm_nobody(network: Proxied) -> None:
    """Each on its own raw socket, with the token and without, at the same time."""
    bearer, json_type = ("authorization", f"Bearer {TOKEN}"), ("content-type", "application/json")
    cases = [
        Case(number, "wire", "POST", "/prober/probe", headers, b'{"x": 1}', wire=name)
        for number, (name, headers) in enumerate(
            (name, headers) for name in ABUSES for headers in ((json_type,), (json_type, bearer))
        )
    ]

    async def send_all() -> list[Outcome]:
        async with Sender(f"http://127.0.0.1:{network.port}") as sender:
            return await asyncio.gather(*(sender.send(case, random.Random(case.number)) for case in cases))

    outcomes = asyncio.run(send_all())
    assert [(outcome.case.shown, outcome.defect) for outcome in outcomes if outcome.defect] == []
    assert network.serves()
    assert network.door.gate.room.used_bytes == 0
