"""The middleware: the token first, then the body and its size, then the services."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from poolbench.http.gate.headers import declared_bytes, has_token, health_of, is_json, is_open_page, without_control
from poolbench.http.gate.health import HealthDesk
from poolbench.http.gate.refusal import RefusalError, Reply, in_our_form
from poolbench.http.tokens import Tokens
from poolbench.settings import GateSettings
from poolbench.statuses import Code
from poolbench.telemetry.catalog import HTTP_REFUSALS

_LOG = logging.getLogger("poolbench.http")
_MIB = 1 << 20
_UNAUTHORIZED = "missing or wrong token: send the header `Authorization: Bearer <token>`"


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
        self.body_bytes = 0  # of all requests in progress

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
        authorized = has_token(scope, self._tokens)
        if (service := health_of(scope)) is not None:
            await reply.json(*await self._health.look(service, authorized))
            return
        if not authorized and not is_open_page(scope, self._settings.open_documentation):
            raise RefusalError(401, Code.UNAUTHORIZED, _UNAUTHORIZED)
        async with self._body(scope, receive) as body:
            await self._forward(without_control(scope), body, receive, reply)

    @asynccontextmanager
    async def _body(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        """Read the whole body, so that no service waits for a slow client. Its bytes count until the block ends.

        Raise RefusalError (413 or 429), or ClientGoneError.
        """
        limit_mib = self._settings.max_json_mib if is_json(scope) else self._settings.max_body_mib
        _require_size(declared_bytes(scope), limit_mib)
        chunks: list[bytes] = []
        size, more = 0, True
        try:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                chunk = message.get("body", b"")
                _require_size(size + len(chunk), limit_mib)
                self._require_room(len(chunk))
                chunks.append(chunk)
                size += len(chunk)
                self.body_bytes += len(chunk)
                more = message.get("more_body", False)
            body = b"".join(chunks)
            chunks.clear()
            yield body
        finally:
            self.body_bytes -= size

    def _require_room(self, size: int) -> None:
        limit_mib = self._settings.max_bodies_mib
        if self.body_bytes + size > limit_mib * _MIB:
            message = f"the bodies of all requests under way together exceed {limit_mib:g} MiB; try again later"
            raise RefusalError(429, Code.BUSY, message)

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
