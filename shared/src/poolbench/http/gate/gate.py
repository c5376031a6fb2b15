"""The middleware: headers and token first, then the rate of the token, then the body, then the services."""

import asyncio
import logging
from collections.abc import Callable, Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from poolbench.http.gate.bodies import Bodies, Body, ClientGoneError
from poolbench.http.gate.clients import Clients, address_of
from poolbench.http.gate.headers import (
    health_of,
    holder_of,
    require_token_or_open_page,
    sends_body,
    without_control,
)
from poolbench.http.gate.health import HealthDesk
from poolbench.http.gate.rates import Rates
from poolbench.http.gate.refusal import Answer, RefusalError, in_our_form
from poolbench.http.tokens import Tokens
from poolbench.settings import GateSettings
from poolbench.statuses import Code
from poolbench.telemetry.catalog import HTTP_REFUSALS

_LOG = logging.getLogger("poolbench.http")


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
        self._open_documentation = settings.open_documentation
        self._deadline_s = deadline_s
        self._clients = Clients(settings)
        self._rates = Rates(settings)
        self._health = HealthDesk(app, tokens, settings, asleep)
        self.bodies = Bodies(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or forward it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = Answer(scope["path"], receive, send)
        try:
            await self._pass(scope, answer)
        except RefusalError as refusal:
            HTTP_REFUSALS.add(code=refusal.code)
            await answer.refuse(refusal)
        except ClientGoneError:
            return

    async def _pass(self, scope: Scope, answer: Answer) -> None:
        holder, closes = holder_of(scope, self._tokens), sends_body(scope)
        holds = holder is not None
        if (service := health_of(scope)) is not None:
            if closes:
                raise RefusalError(400, Code.INPUT, "`/health` takes no body; send none", closes=True)
            await answer.json(*await self._health.look(service, holds))
            return
        require_token_or_open_page(scope, holds, self._open_documentation)
        if holder is not None:
            self._rates.spend(holder, closes=closes)
        with self._clients.request(address_of(scope.get("client")), holds, closes):
            body = Body()
            try:
                await self.bodies.read(scope, answer, body)
                await self._forward(without_control(scope), body, answer)
            finally:
                self.bodies.release(body)

    async def _forward(self, scope: Scope, body: Body, answer: Answer) -> None:
        handed_on = False

        async def receive() -> Message:
            nonlocal handed_on
            if handed_on:
                return await answer.until_gone()
            handed_on = True
            return {"type": "http.request", "body": body.take(), "more_body": False}

        limit = asyncio.timeout(self._deadline_s)
        try:
            async with limit:
                await self._app(scope, receive, in_our_form(scope["path"], answer.send))
        except Exception as error:
            if not limit.expired():
                _LOG.error("%s %s", scope["method"], scope["path"], exc_info=error)
        if limit.expired():  # Serve's proxy ends quietly when it is cancelled
            raise RefusalError(504, Code.DEADLINE, f"no answer within {self._deadline_s:g} s")
        if not answer.started:
            raise RefusalError(503, Code.UNAVAILABLE, "the service broke off; it may be restarting: try again")
