"""The middleware: the token first, then the body and its size, then the services."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from poolbench.contracts.wire import CONSOLE_PATH, HEALTH_PATH, HTTP_CODES, JSON_TYPE, SERVICES
from poolbench.http.error_form import error_json, json_headers
from poolbench.http.gate.health import HealthDesk
from poolbench.http.tokens import Tokens
from poolbench.settings import GateSettings
from poolbench.statuses import Code
from poolbench.telemetry.catalog import HTTP_REFUSALS

#: Read by Ray Serve's proxy. They switch off its time limits and its watch for clients that leave, or choose a replica.
SERVE_HEADERS = {
    b"x-request-timeout-seconds",
    b"x-request-disconnect-disabled",
    b"x-session-id",
    b"serve-multiplexed-model-id",
}
_OPEN_PAGES = {"docs", "docs/swagger-ui-bundle.js", "docs/swagger-ui.css", "docs/favicon.png", "openapi.json"}
_ROUTES_OF_SERVE = "/-/routes"
_HEALTH_OF_SERVE = "/-/healthz"
_MAX_TEXT_BYTES = 1000
_LOG = logging.getLogger("poolbench.http")
_MIB = 1 << 20
#: Share of the room for bodies that requests without a token have. The console checks its cookies itself.
_OPEN_SHARE = 1 / 8
_UNAUTHORIZED = "missing or wrong token: send the header `Authorization: Bearer <token>`"


def has_token(scope: Scope, tokens: Tokens) -> bool:
    """Return whether the request carries a valid token, and no second one."""
    sent = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(sent) != 1:
        return False
    scheme, _, credentials = sent[0].partition(b" ")
    return scheme.lower() == b"bearer" and tokens.accept(credentials.strip())


def health_of(scope: Scope) -> str | None:
    """Return the service of a health request; None for other requests."""
    service, _, verb = scope["path"].removeprefix("/").partition("/")
    return service if f"/{verb}" == HEALTH_PATH and service in SERVICES and scope["method"] == "GET" else None


def is_open_page(scope: Scope, open_documentation: bool) -> bool:
    """Return whether the gate lets a request pass without a token.

    These are the health of Serve's proxy, documentation if it is open, and the console, which has a guard of its own.
    """
    if f"{scope['path']}/".startswith(f"{CONSOLE_PATH}/"):
        return True
    service, _, page = scope["path"].removeprefix("/").partition("/")
    is_documentation = (service in SERVICES and page in _OPEN_PAGES) or scope["path"] == _ROUTES_OF_SERVE
    is_open = scope["path"] == _HEALTH_OF_SERVE or (open_documentation and is_documentation)
    return is_open and scope["method"] in ("GET", "HEAD")


def is_json(scope: Scope) -> bool:
    """Return whether a service would parse the body as JSON, also without a content type."""
    kind = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
    return kind in ("", JSON_TYPE) or kind.endswith("+json")


class RefusalError(Exception):
    """A request that is refused, with status, code and message of the error."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Reply:
    """The response to one client, with a flag for whether it has begun."""

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


@dataclass
class Room:
    """What the bodies of requests under way may take together."""

    limit_mib: float
    used_bytes: int = 0

    def take(self, size: int) -> None:
        """Count further bytes of a body. Raise RefusalError (429) if they do not fit."""
        if self.used_bytes + size > self.limit_mib * _MIB:
            room = f"{self.limit_mib:g} MiB; try again later"
            raise RefusalError(429, Code.BUSY, f"the bodies of all requests under way together exceed {room}")
        self.used_bytes += size


class ClientGoneError(Exception):
    """The client left before its request was complete."""


class Gate:
    """ASGI middleware in front of all services.

    Args:
        app: The proxy of Ray Serve.
        tokens: Bearer tokens of the services.
        settings: Limits.
        deadline_s: Seconds until a response. The services keep a shorter deadline; this one is for lost replicas.
        asleep: Returns the services without a replica.
    """

    def __init__(
        self,
        app: ASGIApp,
        tokens: Tokens,
        settings: GateSettings,
        deadline_s: float,
        asleep: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._settings = settings
        self._deadline_s = deadline_s
        self._health = HealthDesk(app, tokens, settings, asleep)
        self.room = Room(settings.max_bodies_mib)
        self.open_room = Room(settings.max_bodies_mib * _OPEN_SHARE)  # of requests without a token, of the console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or forward it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        reply = Reply(scope["path"], send)
        try:
            await self._answer(scope, receive, reply)
        except RefusalError as refusal:
            HTTP_REFUSALS.add(code=refusal.code)
            await reply.refuse(refusal)
        except ClientGoneError:
            return

    async def _answer(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        await self._tokens.refresh()
        authorized = has_token(scope, self._tokens)
        if (service := health_of(scope)) is not None:
            await reply.json(*await self._health.look(service, authorized))
            return
        if not authorized and not is_open_page(scope, self._settings.open_documentation):
            raise RefusalError(401, Code.UNAUTHORIZED, _UNAUTHORIZED)
        async with self._body(scope, receive, self.room if authorized else self.open_room) as body:
            headers = [pair for pair in scope["headers"] if pair[0].replace(b"_", b"-") not in SERVE_HEADERS]
            await self._forward({**scope, "headers": headers}, body, receive, reply)

    @asynccontextmanager
    async def _body(self, scope: Scope, receive: Receive, room: Room) -> AsyncIterator[bytes]:
        """Read the whole body, so that no service waits for a slow client. Its bytes count until the block ends.

        Raise RefusalError (413 or 429), or ClientGoneError.
        """
        limit_mib = self._settings.max_json_mib if is_json(scope) else self._settings.max_body_mib
        _require_size(int(Headers(scope=scope).get("content-length", "0")), limit_mib)
        chunks: list[bytes] = []
        size, more = 0, True
        try:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                chunk = message.get("body", b"")
                _require_size(size + len(chunk), limit_mib)
                room.take(len(chunk))
                chunks.append(chunk)
                size += len(chunk)
                more = message.get("more_body", False)
            body = b"".join(chunks)
            chunks.clear()
            yield body
        finally:
            room.used_bytes -= size

    async def _forward(self, scope: Scope, body: bytes, receive: Receive, reply: Reply) -> None:
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_body_or_end() -> Message:
            if messages:
                return messages.pop()
            while (message := await receive())["type"] != "http.disconnect":
                pass
            return message

        limit = asyncio.timeout(self._deadline_s)
        try:
            async with limit:
                await self._app(scope, receive_body_or_end, in_our_form(scope["path"], reply.send))
        except Exception as error:
            if not limit.expired():
                _LOG.error("%s %s", scope["method"], scope["path"], exc_info=error)
        if limit.expired():  # Serve's proxy ends quietly when it is cancelled
            raise RefusalError(504, Code.DEADLINE, f"no answer within {self._deadline_s:g} s")
        if not reply.started:
            raise RefusalError(503, Code.UNAVAILABLE, "the service broke off; it may be restarting: try again")


def _require_size(size: int, limit_mib: float) -> None:
    if size > limit_mib * _MIB:
        message = f"the body has {size} bytes or more; at most {limit_mib:g} MiB are allowed: send it in parts"
        raise RefusalError(413, Code.TOO_LARGE, message)
