"""Responses of the gate itself: one shape for every error."""

from starlette.types import Message, Send

from poolbench.contracts.wire import HTTP_CODES
from poolbench.http.error_form import error_json, json_headers
from poolbench.statuses import Code

_MAX_TEXT_BYTES = 1000


class RefusalError(Exception):
    """A request that is refused, with status, code and message of the error."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Reply:
    """The response to one client, and whether it has begun."""

    def __init__(self, path: str, send: Send) -> None:
        self._path = path
        self._send = send
        self.started = False

    async def send(self, message: Message) -> None:
        """Send a part of the response."""
        self.started = True
        await self._send(message)

    async def json(self, status: int, body: bytes) -> None:
        """Send a whole response."""
        await _send_json(self.send, status, body)

    async def refuse(self, refusal: RefusalError) -> None:
        """Answer with an error, unless a response has begun. The server drops what is left of the body."""
        if not self.started:
            await self.json(refusal.status, error_json(self._path, refusal.status, refusal.code, str(refusal)))


def in_our_form(path: str, send: Send) -> Send:
    """Replace the plain text of errors of Ray Serve's proxy itself."""
    status = 0
    text = bytearray()

    async def sender(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start" and _is_text_error(message):
            status = message["status"]
        elif status and message["type"] == "http.response.body":
            text.extend(message.get("body", b"")[:_MAX_TEXT_BYTES])
            if not message.get("more_body", False):
                code = HTTP_CODES.get(status, Code.HTTP)
                await _send_json(send, status, error_json(path, status, code, text.decode(errors="replace")))
        else:
            await send(message)

    return sender


async def _send_json(send: Send, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": json_headers(status, len(body))})
    await send({"type": "http.response.body", "body": body})


def _is_text_error(message: Message) -> bool:
    kinds = [value for name, value in message["headers"] if name.lower() == b"content-type"]
    return message["status"] >= 400 and all(kind.startswith(b"text/plain") for kind in kinds)
