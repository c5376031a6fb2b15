"""A raw connection on which a request can be sent in ways that no HTTP client knows."""

import asyncio
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass

from tests.trials.hostile.case import Case

READ_S = 12.0
BUFFER = 1 << 16


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
            await asyncio.wait_for(self.writer.drain(), READ_S)

    async def answer(self, wait_s: float = READ_S) -> bytes:
        """What comes back until the other side is silent for a moment, closes, or the wait ends."""
        received = b""
        with suppress(TimeoutError, ConnectionError):
            received = await asyncio.wait_for(self.reader.read(BUFFER), wait_s)
            while part := await asyncio.wait_for(self.reader.read(BUFFER), 0.3):
                received += part
        return received

    def abort(self) -> None:
        """Leaves with a reset instead of a goodbye."""
        raw = self.writer.get_extra_info("socket")
        with suppress(OSError, AttributeError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
