"""Middleware outside of the gate: every request has an id, and its response carries it."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from poolbench.contracts.wire import REQUEST_ID_HEADER
from poolbench.telemetry.ids import identified, new_request_id, sent_request_id

_NAME = REQUEST_ID_HEADER.lower().encode()


class RequestIds:
    """ASGI middleware. An id of the client is kept if it is safe; otherwise the request gets a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its id as the header `X-Request-ID`, and add the id to its response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = sent_request_id(scope["headers"]) or new_request_id()
        header = (_NAME, request_id.encode())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*_others(message["headers"]), header]}
            await send(message)

        with identified(request_id=request_id):
            await self._app({**scope, "headers": [*_others(scope["headers"]), header]}, receive, send_with_id)


def _others(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() != _NAME]
