"""What only a raw socket can do: bodies that stop, senders that crawl, clients that leave or do not read."""

import asyncio
import base64
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.trials.hostile.case import Case

_READ_S, _CRAWL_S = 12.0, 6.0
_BUFFER = 1 << 16


@dataclass
class Line:
    """An open connection, and the head of the request that is to be abused."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    case: Case
    host: str

    def head(self, *further: str, length: int | None = None) -> bytes:
        """Request line and headers; `length` is what Content-Length says."""
        lines = [f"{self.case.method} {self.case.path} HTTP/1.1", f"Host: {self.host}"]
        lines += [f"{name}: {value}" for name, value in self.case.headers]
        lines += further if length is None else (*further, f"Content-Length: {length}")
        return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n"

    async def send(self, data: bytes) -> None:
        """Sends, unless the other side has closed."""
        with suppress(ConnectionError):
            self.writer.write(data)
            await asyncio.wait_for(self.writer.drain(), _READ_S)

    async def answer(self, wait_s: float = _READ_S) -> bytes:
        """What comes back until the other side is silent for a moment, closes, or the wait ends."""
        received = b""
        with suppress(TimeoutError, ConnectionError):
            received = await asyncio.wait_for(self.reader.read(_BUFFER), wait_s)
            while part := await asyncio.wait_for(self.reader.read(_BUFFER), 0.3):
                received += part
        return received

    def abort(self) -> None:
        """Leaves with a reset instead of a goodbye."""
        raw = self.writer.get_extra_info("socket")
        with suppress(OSError, AttributeError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Abuse = Callable[[Line, random.Random], Awaitable[bytes]]
#: Every abuse by name.
ABUSES: dict[str, Abuse] = {}


def _abuse(made: Abuse) -> Abuse:
    ABUSES[made.__name__] = made
    return made


async def abuse(address: str, source: str, case: Case, rng: random.Random) -> bytes:
    """Carries out the abuse that a case names; returns what was answered."""
    parts = urlsplit(address)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, local_addr=(source, 0), limit=_BUFFER)
    line = Line(reader, writer, case, f"{parts.hostname}:{parts.port}")
    try:
        return await ABUSES[case.wire](line, rng)
    finally:
        writer.transport.abort()


@_abuse
async def leaves(line: Line, rng: random.Random) -> bytes:
    """Asks properly and is gone before the answer."""
    await line.send(line.head(length=len(line.case.body)) + line.case.body)
    await asyncio.sleep(rng.uniform(0, 0.2))
    line.abort()
    return b""


@_abuse
async def leaves_early(line: Line, rng: random.Random) -> bytes:
    """Is gone in the middle of the body."""
    await line.send(line.head(length=len(line.case.body)) + line.case.body[: rng.randrange(len(line.case.body) + 1)])
    line.abort()
    return b""


@_abuse
async def truncates(line: Line, rng: random.Random) -> bytes:
    """Promises more than it sends, and waits."""
    await line.send(line.head(length=len(line.case.body) + rng.choice((1, 1000, 10**7))) + line.case.body)
    return await line.answer(_CRAWL_S)


@_abuse
async def half_closes(line: Line, rng: random.Random) -> bytes:
    """Asks properly, closes its sending side, and reads."""
    await line.send(line.head(length=len(line.case.body)) + line.case.body)
    with suppress(OSError):
        line.writer.write_eof()
    return await line.answer()


@_abuse
async def crawls_head(line: Line, rng: random.Random) -> bytes:
    """Sends its headers a byte at a time."""
    for byte in line.head(length=5)[: int(_CRAWL_S / 0.2)]:
        await line.send(bytes([byte]))
        await asyncio.sleep(0.2)
    return await line.answer(0.5)


@_abuse
async def crawls_body(line: Line, rng: random.Random) -> bytes:
    """Sends its body a byte at a time."""
    await line.send(line.head(length=10**6))
    for _ in range(int(_CRAWL_S / 0.2)):
        await line.send(b" ")
        await asyncio.sleep(0.2)
        if line.reader.at_eof():
            break
    return await line.answer(0.5)


@_abuse
async def bad_length(line: Line, rng: random.Random) -> bytes:
    """Lies about its length, or says two."""
    lies = ("-1", "x", "1e3", "99999999999999999999", "0x10", "+5", " ", "5, 7", str(2**63))
    await line.send(line.head(f"Content-Length: {rng.choice(lies)}") + line.case.body)
    return await line.answer()


@_abuse
async def two_lengths(line: Line, rng: random.Random) -> bytes:
    """Says chunked and a length: how requests are smuggled past a proxy."""
    hidden = b"0\r\n\r\nGET /extractor/health HTTP/1.1\r\nHost: x\r\n\r\n"
    await line.send(line.head("Transfer-Encoding: chunked", length=len(hidden)) + hidden)
    return await line.answer()


@_abuse
async def bad_chunks(line: Line, rng: random.Random) -> bytes:
    """Chunks whose sizes are no numbers, negative or enormous."""
    size = rng.choice((b"zz", b"-5", b"ffffffffffffffffff", b"5;" + b"x" * 20_000, b"", b"0x5", b"5\x00"))
    await line.send(line.head("Transfer-Encoding: chunked") + size + b"\r\nhello\r\n0\r\n\r\n")
    return await line.answer()


@_abuse
async def never_ends(line: Line, rng: random.Random) -> bytes:
    """Chunks that go on and on."""
    await line.send(line.head("Transfer-Encoding: chunked"))
    for _ in range(60):
        await line.send(b"1000\r\n" + b" " * 0x1000 + b"\r\n")
        await asyncio.sleep(0.05)
        if line.reader.at_eof():
            break
    return await line.answer(0.5)


@_abuse
async def trailers(line: Line, rng: random.Random) -> bytes:
    """A body with trailers: a few, thousands, or one that is enormous."""
    kinds = (b"X-A: 1\r\n", b"X-B: 2\r\n" * 5000, b"X-C: " + b"c" * 500_000 + b"\r\n", b"Authorization: Bearer x\r\n")
    body = b"%x\r\n" % len(line.case.body) + line.case.body + b"\r\n0\r\n" + rng.choice(kinds) + b"\r\n"
    await line.send(line.head("Transfer-Encoding: chunked") + body)
    return await line.answer()


@_abuse
async def header_flood(line: Line, rng: random.Random) -> bytes:
    """Very many headers, or one that is very long."""
    many = [f"X-{index}: {index}" for index in range(rng.choice((200, 5000)))]
    further = many if rng.random() < 0.5 else ["X-Long: " + "x" * rng.choice((70_000, 2_000_000))]
    await line.send(line.head(*further, length=len(line.case.body)) + line.case.body)
    return await line.answer()


@_abuse
async def no_http(line: Line, rng: random.Random) -> bytes:
    """Bytes that are no HTTP/1.1 request."""
    kinds = (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(300),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(64),
        b"GET /\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET " + b"/a" * 50_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\r\n" * 5000,
        rng.randbytes(4000),
        b"GET / HTTP/1.1\nHost: x\n\n",
        b"GET http://127.0.0.1:1/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /prober/probe HTTP/1.1\r\nHost: x\r\nX: a\r\n b\x00\r\n\r\n",
        b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: x\r\n\r\n",
    )
    await line.send(rng.choice(kinds))
    return await line.answer(3)


@_abuse
async def pipelines(line: Line, rng: random.Random) -> bytes:
    """Many requests at once on one connection, none of whose answers it waits for."""
    await line.send((line.head(length=len(line.case.body)) + line.case.body) * rng.choice((5, 20)))
    return await line.answer()


@_abuse
async def does_not_read(line: Line, rng: random.Random) -> bytes:
    """Asks for large answers and reads none."""
    raw = line.writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.writer.transport.pause_reading()  # type: ignore[attr-defined]
    with suppress(TimeoutError):
        ask = b"GET /steerer/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
        await asyncio.wait_for(line.send(ask * 40), 1)
    await asyncio.sleep(_CRAWL_S)
    return b""


@_abuse
async def upgrades(line: Line, rng: random.Random) -> bytes:
    """Asks for a WebSocket, for HTTP/2 or for something there is not."""
    key = base64.b64encode(rng.randbytes(16)).decode()
    websocket = ("Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13")
    kinds = (websocket, ("Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABk"))
    await line.send(line.head(*rng.choice((*kinds, ("Upgrade: TLS/1.0", "Connection: upgrade"), websocket)), length=0))
    received = await line.answer(4)
    await line.send(b"\x81\xfe\xff\xff" + rng.randbytes(200))
    return received


@_abuse
async def expects(line: Line, rng: random.Random) -> bytes:
    """Asks for leave to send a body, and sends none."""
    await line.send(line.head(f"Expect: {rng.choice(('100-continue', 'x'))}", length=10 ** rng.choice((1, 12))))
    return await line.answer(4)


@_abuse
async def breaks_stream(line: Line, rng: random.Random) -> bytes:
    """Reads the start of a stream and goes."""
    await line.send(line.head(length=len(line.case.body)) + line.case.body)
    received = b""
    with suppress(TimeoutError, ConnectionError):
        received = await asyncio.wait_for(line.reader.read(200), _READ_S)
    line.abort()
    return received
