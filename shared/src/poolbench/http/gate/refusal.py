"""Responses of the gate itself: one shape for every error, and a clean end for an unread body."""

import asyncio
import math
import time

from starlette.types import Message, Receive, Send

from poolbench.contracts.wire import HTTP_CODES
from poolbench.http.error_form import error_json, json_headers
from poolbench.statuses import Code

LINGER_S = 1.0
LINGER_BYTES = 4 << 20
_MAX_SAID = 1000


class RefusalError(Exception):
    """A request that is refused.

    Args:
        status: Status of the response.
        code: Code of the error.
        said: Message of the error.
        closes: Close the connection after the response, because more of the request may come.
        retry_after_s: When the same request may succeed, if that is known.
    """

    def __init__(
        self, status: int, code: str, said: str, *, closes: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(said)
        self.status = status
        self.code = code
        self.closes = closes
        self.retry_after_s = None if retry_after_s is None else math.ceil(retry_after_s)

    def body(self, path: str = "") -> bytes:
        """Return the body of the response, in the form of the service at `path`."""
        return error_json(path, self.status, self.code, str(self))

    def headers(self, size: int) -> list[tuple[bytes, bytes]]:
        """Return the headers of the response, for a body of `size` bytes."""
        found = json_headers(self.status, size, self.retry_after_s)
        if self.closes:
            found.append((b"connection", b"close"))
        return found


class Answer:
    """The response to one client, and how far it is."""

    def __init__(self, path: str, receive: Receive, send: Send) -> None:
        self._path = path
        self._receive = receive
        self._send = send
        self.started = False
        self.gone = False

    async def receive(self) -> Message:
        """Return the client's next message."""
        message = await self._receive()
        self.gone = self.gone or message["type"] == "http.disconnect"
        return message

    async def until_gone(self) -> Message:
        """Wait until the client disconnects; drop what it sends beyond its request."""
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                return message

    async def send(self, message: Message) -> None:
        """Send a part of the response."""
        self.started = True
        await self._send(message)

    async def json(self, status: int, body: bytes) -> None:
        """Send a whole response."""
        headers = json_headers(status, len(body))
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    async def refuse(self, refusal: RefusalError) -> None:
        """Answer with an error, unless a response has begun or the client has left.

        Closing a connection with unread bytes resets it, and the client may lose the response. So the response is sent
        first, further bytes are dropped for a moment, and only then the connection is closed.
        """
        if self.started or self.gone:
            return
        body = refusal.body(self._path)
        headers = refusal.headers(len(body))
        await self.send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": refusal.closes})
        if refusal.closes:
            await self._linger()
            await self.send({"type": "http.response.body", "body": b""})

    async def _linger(self) -> None:
        size, ends_at = 0, time.monotonic() + LINGER_S
        while size < LINGER_BYTES and (left_s := ends_at - time.monotonic()) > 0:
            try:
                message = await asyncio.wait_for(self.receive(), left_s)
            except TimeoutError:
                return
            size += len(message.get("body", b""))
            if not message.get("more_body", False):
                return


def in_our_form(path: str, send: Send) -> Send:
    """Replace the plain text of errors of Ray Serve's proxy itself."""
    held: list[int] = []
    said = bytearray()

    async def sender(message: Message) -> None:
        if message["type"] == "http.response.start" and _is_text_error(message):
            held.append(message["status"])
        elif held and message["type"] == "http.response.body":
            said.extend(message.get("body", b"")[:_MAX_SAID])
            if not message.get("more_body", False):
                refusal = RefusalError(held[0], HTTP_CODES.get(held[0], Code.HTTP), said.decode(errors="replace"))
                body = refusal.body(path)
                headers = refusal.headers(len(body))
                await send({"type": "http.response.start", "status": held[0], "headers": headers})
                await send({"type": "http.response.body", "body": body})
        else:
            await send(message)

    return sender


def _is_text_error(message: Message) -> bool:
    kinds = [value for name, value in message["headers"] if name.lower() == b"content-type"]
    return message["status"] >= 400 and all(kind.startswith(b"text/plain") for kind in kinds)
