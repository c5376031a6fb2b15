"""Answer `/health` of every service at the gate.

One question at a time is sent to each service. Each caller waits briefly for its answer. A service that is too busy to
answer by then is reported as it was last seen, and a service that stays silent for long is reported as down. A service
that has scaled to zero is reported as asleep and not asked, because a question would start a replica.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Collection
from typing import Any

from starlette.types import ASGIApp, Message

from poolbench.contracts.wire import HEALTH_PATH
from poolbench.http.tokens import Tokens
from poolbench.settings import GateSettings
from poolbench.statuses import ServiceState

_FRESH_S = 0.2
_MAX_BYTES = 1 << 20
_LOG = logging.getLogger("poolbench.http")


class HealthDesk:
    """The last health response of each service behind the gate, asked for with the bearer token to get details.

    Args:
        app: The proxy of Ray Serve.
        tokens: Bearer tokens of the services.
        settings: Limits.
        asleep: Returns the services without a replica. It is called in a thread, because it may wait for Serve.
    """

    def __init__(
        self, app: ASGIApp, tokens: Tokens, settings: GateSettings, asleep: Callable[[], Collection[str]]
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._settings = settings
        self._seen: dict[str, _Seen] = {}
        self._sleepers = _Sleepers(asleep, settings)

    async def look(self, service: str, details: bool) -> tuple[int, bytes]:
        """Return status and body of a health response; `details` if the client holds the token."""
        asleep = await self._sleepers.have(service)
        if asleep:
            # A question that met the end of the last replica would wait for another, and start it.
            if (seen := self._seen.pop(service, None)) is not None and seen.question is not None:
                seen.question.cancel()
            return 200, _dump({"status": ServiceState.ASLEEP})
        seen = self._seen.setdefault(service, _Seen())
        if asleep is None and seen.body:
            return seen.status, _dump(seen.body if details else {"status": seen.body["status"]})
        if details or time.monotonic() - seen.at_s > _FRESH_S:
            await asyncio.wait({self._question(service, seen)}, timeout=self._settings.health_wait_s)
        if seen.silent_s() > self._settings.health_silence_s or not seen.body:
            reason = f"no answer for {seen.silent_s():.1f} s"
            return 503, _dump({"status": ServiceState.SILENT, **({"reason": reason} if details else {})})
        return seen.status, _dump(seen.body if details else {"status": seen.body["status"]})

    def _question(self, service: str, seen: "_Seen") -> asyncio.Task[None]:
        task, now_s = seen.question, time.monotonic()
        if task is not None and now_s - seen.sent_s > 4 * self._settings.health_silence_s:
            task.cancel()  # lost on its way
            task = None
        if task is None or task.done():
            seen.sent_s = now_s
            seen.asked_s = now_s if seen.asked_s is None else seen.asked_s
            task = seen.question = asyncio.create_task(self._ask(service, seen))
        return task

    async def _ask(self, service: str, seen: "_Seen") -> None:
        await self._tokens.refresh()
        for token in self._tokens.valid():
            reply = _Reply()
            try:
                await self._app(self._scope(service, token), reply.receive, reply.send)
            except Exception as error:
                reply.status, reply.body = 503, type(error).__name__.encode()
            seen.status, seen.body = reply.read(service)
            if set(seen.body) != {"status"}:  # a replica that has not read the same tokens yet gives no details
                break
        seen.at_s = time.monotonic()
        seen.asked_s = None

    def _scope(self, service: str, token: str) -> dict[str, Any]:
        path = f"/{service}{HEALTH_PATH}"
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"localhost"), (b"authorization", f"Bearer {token}".encode())],
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 0),
            "state": {},
        }


class _Sleepers:
    """The services without a replica, looked up again for each question."""

    def __init__(self, look: Callable[[], Collection[str]], settings: GateSettings) -> None:
        self._look, self._settings = look, settings
        self._found: Collection[str] = ()
        self._at_s = float("-inf")
        self._lookup: asyncio.Task[None] | None = None

    async def have(self, service: str) -> bool | None:
        """Return whether a service is asleep; None if Serve does not say so in time, but recently did."""
        if time.monotonic() - self._at_s > _FRESH_S:
            if self._lookup is None or self._lookup.done():
                self._lookup = asyncio.create_task(self._update())
            await asyncio.wait({self._lookup}, timeout=self._settings.health_wait_s)
        age_s = time.monotonic() - self._at_s
        if _FRESH_S + self._settings.health_wait_s < age_s < self._settings.health_silence_s:
            return None
        return service in self._found

    async def _update(self) -> None:
        try:
            self._found = await asyncio.to_thread(self._look)
        except Exception:  # Serve's controller restarts: the services are asked instead
            self._found = ()
            _LOG.warning("Serve does not say which services are asleep", exc_info=True)
        self._at_s = time.monotonic()


class _Seen:
    """The last response of one service, and the question in progress."""

    def __init__(self) -> None:
        self.question: asyncio.Task[None] | None = None
        self.asked_s: float | None = None  # time of the first request without a response
        self.sent_s = 0.0
        self.at_s = float("-inf")
        self.status = 503
        self.body: dict[str, Any] = {}

    def silent_s(self) -> float:
        """Return the seconds without a response."""
        return 0.0 if self.asked_s is None else time.monotonic() - self.asked_s


class _Reply:
    """The two ends of the gate's own request."""

    def __init__(self) -> None:
        self.status = 503
        self.body = b""
        self._asked = False

    async def receive(self) -> Message:
        """Return an empty body at the first call. Later calls wait forever, because this client never disconnects."""
        if self._asked:
            await asyncio.Event().wait()
        self._asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: Message) -> None:
        """Collect the response."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif len(self.body) < _MAX_BYTES:
            self.body += message.get("body", b"")

    def read(self, service: str) -> tuple[int, dict[str, Any]]:
        """Return status and details. Serve itself answers with text if a service is not deployed or not up."""
        try:
            body = json.loads(self.body)
        except ValueError:
            body = None
        if isinstance(body, dict) and isinstance(body.get("status"), str):
            return self.status, body
        reason = f"the {service} is not deployed" if self.status == 404 else self.body.decode(errors="replace")[:200]
        return 503, {"status": ServiceState.UNAVAILABLE, "reason": reason}


def _dump(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
