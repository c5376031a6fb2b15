"""A gate behind a real server, with a small application behind it, and clients that speak TCP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from tests.waiting import PATIENCE_S

from poolbench.http.gate.gate import Gate
from poolbench.http.gate.serve import protocol_class
from poolbench.http.tokens import Tokens
from poolbench.settings import GateSettings

TOKEN = "only-for-this-test"
SMALL = {"max_body_mib": 2, "max_json_mib": 1, "max_bodies_mib": 3}


@dataclass
class Behind:
    """The application behind the gate: says what reached it, and waits where a test wants it to."""

    seen: list[dict[str, Any]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)
    answer_bytes: int = 0
    asleep: set[str] = field(default_factory=set)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        body = message["body"]
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.seen.append({"path": scope["path"], "bytes": len(body), "headers": headers, "kind": scope["type"]})
        await self._wait(scope, receive)
        if scope["path"].endswith("/text"):
            return await self._say(send, 404, b"no such path", b"text/plain")
        if scope["path"].endswith("/lost"):
            return None
        whole = json.dumps({"status": "ok", "bytes": len(body)}).encode() + b" " * self.answer_bytes
        return await self._say(send, 200, whole, b"application/json")

    async def _wait(self, scope: Any, receive: Any) -> None:
        if scope["path"].endswith(("/hold", "/health")) and self.held.is_set():
            gone = asyncio.create_task(receive())
            try:
                while self.held.is_set() and not gone.done():
                    await asyncio.sleep(0.01)
                self.ended.append("gone" if gone.done() else "released")
            except asyncio.CancelledError:
                self.ended.append("cancelled")
                raise
            finally:
                gone.cancel()

    async def _say(self, send: Any, status: int, body: bytes, kind: bytes) -> None:
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@dataclass
class Door:
    """A running server."""

    port: int
    behind: Behind
    gate: Gate

    def connect(self) -> socket.socket:
        """A connection of a client."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def ask(self, raw: bytes) -> Reply:
        """Sends bytes on a connection of its own and reads until it is closed."""
        with self.connect() as client:
            client.sendall(raw)
            return read_reply(client)


@dataclass
class Reply:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The code of an error."""
        return str(json.loads(self.body)["error"]["code"])


def request(path: str, *headers: str, method: str = "GET", body: bytes = b"", token: str = "") -> bytes:
    """A request as bytes; the connection ends after it."""
    lines = [f"{method} {path} HTTP/1.1", "Host: door", "Connection: close", *headers]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def kept_open(raw: bytes) -> bytes:
    """The same request on a connection that stays open."""
    return raw.replace(b"Connection: close\r\n", b"")


def read_reply(client: socket.socket) -> Reply:
    """Reads one whole answer."""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = client.recv(65536)
        if not chunk:
            raise ConnectionError(f"closed after {data!r}")
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        chunk = client.recv(65536)
        if not chunk:
            break
        body += chunk
    return Reply(int(first.split()[1]), headers, body)


def closed(client: socket.socket, within_s: float = PATIENCE_S) -> bool:
    """Whether the server ends the connection in time."""
    client.settimeout(within_s)
    try:
        while client.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


@contextlib.contextmanager
def serving(tokens: Tokens | None = None, tls: Mapping[str, str] | None = None, **settings: Any) -> Iterator[Door]:
    """A gate with small limits; `tls` has uvicorn's options of that name."""
    limits, behind = GateSettings(**{**SMALL, **settings}), Behind()
    gate = Gate(behind, tokens or Tokens.fixed(TOKEN), limits, deadline_s=20.0, asleep=lambda: set(behind.asleep))
    protocol = protocol_class(limits)
    config = uvicorn.Config(gate, http=protocol, log_level="critical", lifespan="off", **(tls or {}))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(256)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield Door(listener.getsockname()[1], behind, gate)
        behind.held.clear()
        server.should_exit = server.force_exit = True
        thread.join(20)
