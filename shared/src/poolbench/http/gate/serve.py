"""Callback of Ray Serve's HTTP proxy at its start: RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names `middlewares`.

Serve accepts middlewares, but no options for its server. uvicorn looks its protocol up by name in a table, so the entry
of that table is replaced in the proxy's process.
"""

import resource
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from poolbench.contracts.wire import REQUEST_ID_HEADER
from poolbench.http.gate.gate import Gate
from poolbench.http.tokens import Tokens
from poolbench.queue.monitor import QueueMonitor
from poolbench.settings import ClusterSettings, GateSettings, HttpSettings
from poolbench.telemetry import record_to_ray
from poolbench.telemetry.ids import identified, request_id_of

if TYPE_CHECKING:
    from starlette.middleware import Middleware
    from uvicorn.protocols.http.h11_impl import H11Protocol

_NAME = REQUEST_ID_HEADER.lower().encode()
#: Seconds that the gate waits beyond the deadline of the services, for those that are lost.
EXTRA_DEADLINE_S = 30.0


class RequestIds:
    """ASGI middleware. An id of the client is kept if it is safe; otherwise the request gets a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its id as the header `X-Request-ID`, and add the id to its response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope["headers"])
        header = (_NAME, request_id.encode())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*_others(message["headers"]), header]}
            await send(message)

        with identified(request_id=request_id):
            await self._app({**scope, "headers": [*_others(scope["headers"]), header]}, receive, send_with_id)


def _others(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() != _NAME]


def middlewares() -> "list[Middleware]":
    """Return the gate and the ids of requests; install the protocol of the server that is about to start.

    Raise ConfigError if there is no token, or a setting is wrong.
    """
    import uvicorn.config
    from starlette.middleware import Middleware

    settings, tokens = GateSettings.load(), Tokens.of_cluster()
    uvicorn.config.HTTP_PROTOCOLS["auto"] = protocol_class(settings)  # type: ignore[assignment]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    deadline_s = HttpSettings.load().deadline_s + EXTRA_DEADLINE_S
    if record_to_ray():
        QueueMonitor(ClusterSettings.load().broker_url).start()
    gate = Middleware(Gate, tokens=tokens, settings=settings, deadline_s=deadline_s, asleep=asleep_services)
    return [gate, Middleware(RequestIds)]  # the last one is the outermost


def protocol_class(settings: GateSettings) -> "type[H11Protocol]":
    """Return uvicorn's h11 protocol with a limit of connections and without WebSockets.

    h11 bounds headers and trailers (64 KiB), refuses what is not valid HTTP/1.1, and reads no request ahead. httptools,
    which uvicorn prefers, does none of this.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class GateProtocol(H11Protocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.limit_concurrency = settings.max_connections
            self.ws_protocol_class = None

    return GateProtocol


def asleep_services() -> set[str]:
    """Return the applications of Serve that have scaled to zero: they run without a replica, or the last one ends."""
    from ray import serve
    from ray.serve.schema import ApplicationStatus, ReplicaState

    return {
        name
        for name, application in serve.status().applications.items()
        if application.status == ApplicationStatus.RUNNING
        and not any(
            count
            for deployment in application.deployments.values()
            for state, count in deployment.replica_states.items()
            if state != ReplicaState.STOPPING
        )
    }
