"""ASGI middleware around the application of a replica: it lets no exception out.

Starlette answers an unexpected exception with 500 and raises it again. Ray Serve would then pickle it, and its proxy
would unpickle it, which imports the library that defined it, such as vLLM, while every service waits. So nothing is
raised here but cancellation.

The border also decides how many verbs run at once. Serve's own limit would count `/health` among them, and a health
check would wait behind long requests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from poolbench.cancellation import Work, working
from poolbench.contracts.wire import EVENT_STREAM, HEALTH_PATH
from poolbench.http.error_form import error_json, json_headers
from poolbench.statuses import Code
from poolbench.telemetry.ids import identified, request_id_of
from poolbench.telemetry.traces import TRACEPARENT, continued, span

_LOG = logging.getLogger("poolbench.http")
_TRACEPARENT = TRACEPARENT.encode()
#: A verb that runs for longer is not a short question, and tasks go on beside it.
_SHORT_S = 5.0
_PAUSE_S = 0.005
_DISCONNECT = {"type": "http.disconnect"}


@dataclass(frozen=True)
class BorderLimits:
    """Limits of one replica."""

    running: int = 16  # requests at once; `/health` is not counted
    waiting: int = 1000  # requests that wait for one of those to end; more are refused with 429
    deadline_s: float = 1800.0  # seconds after which a request is answered with 504 and its work cancelled


class Load:
    """The verbs in progress, with those that wait; `/health` is not among them, or a watcher would count as work."""

    def __init__(self) -> None:
        self.num = 0
        self._sum_s = 0.0  # the seconds of all verbs since `_asked_s`, up to `_changed_s`
        self._changed_s = self._asked_s = time.monotonic()

    def __enter__(self) -> None:
        self._change(1)

    def __exit__(self, *_: object) -> None:
        self._change(-1)

    def take_mean(self) -> float:
        """Return the mean number in progress since the last call: above 0 if there was any, however short."""
        self._change(0)
        mean = self._sum_s / max(self._changed_s - self._asked_s, 1e-9)
        self._sum_s, self._asked_s = 0.0, self._changed_s
        return mean

    def _change(self, by: int) -> None:
        now = time.monotonic()
        self._sum_s += self.num * (now - self._changed_s)
        self._changed_s = now
        self.num += by


class Border:
    """ASGI middleware around the whole application of a service."""

    def __init__(self, app: ASGIApp, limits: BorderLimits) -> None:
        self._app = app
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.running)
        self._num_waiting = 0
        self._requests: set[asyncio.Task[None]] = set()
        self._began_s: dict[int, float] = {}  # of the verbs that run, by the id of their request
        self.load = Load()

    def pause_for_requests(self) -> None:
        """Wait while a verb runs that began less than five seconds ago; a task's thread calls this between two steps.

        Two threads that compute share Python's global lock, so a short request beside a task takes seconds.
        """
        ends_at = time.monotonic() + _SHORT_S
        while time.monotonic() < ends_at and any(
            time.monotonic() - began_s < _SHORT_S for began_s in list(self._began_s.values())
        ):
            time.sleep(_PAUSE_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; raise nothing but CancelledError."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope["headers"])
        parent = next((value for name, value in scope["headers"] if name == _TRACEPARENT), b"").decode("latin-1")
        name = f"{scope['method']} {scope.get('root_path', '')}"
        with identified(request_id=request_id), continued(parent), span(name, request_id=request_id):
            request = _Request(scope["path"], send, Work(self._limits.deadline_s))
            task = asyncio.create_task(self._admit(scope, request))
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)
            await self._attend(task, request, receive)

    async def _attend(self, task: asyncio.Task[None], request: _Request, receive: Receive) -> None:
        """Wait until the response is sent, the client disconnects or the deadline passes.

        The application's task is not cancelled: a verb in a thread would run on, uncounted. It is asked to end, and
        keeps its slot until it does.
        """
        listener = asyncio.create_task(request.listen(receive))
        try:
            done, _ = await asyncio.wait(
                {task, request.left}, timeout=self._limits.deadline_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                await request.answer(
                    504, Code.DEADLINE, f"no answer within {self._limits.deadline_s:g} s; ask for less"
                )
                request.end("the deadline of the request has passed")
        except asyncio.CancelledError:
            request.end("the client has gone")
            raise
        finally:
            listener.cancel()
            if not request.running:
                task.cancel()

    async def _admit(self, scope: Scope, request: _Request) -> None:
        if scope["path"].removeprefix(scope.get("root_path", "")) == HEALTH_PATH:
            await self._run(scope, request)
            return
        if self._slots.locked() and self._num_waiting >= self._limits.waiting:
            message = f"{self._num_waiting} requests are waiting; at most {self._limits.waiting} may: try again later"
            await request.answer(429, Code.BUSY, message)
            return
        with self.load:
            await self._run_in_turn(scope, request)

    async def _run_in_turn(self, scope: Scope, request: _Request) -> None:
        self._num_waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._num_waiting -= 1
        self._began_s[id(request)] = time.monotonic()
        try:
            await self._run(scope, request)
        finally:
            del self._began_s[id(request)]
            self._slots.release()

    async def _run(self, scope: Scope, request: _Request) -> None:
        request.running = True
        with working(request.work):
            try:
                await self._app(scope, request.receive, request.send)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # also SystemExit and panics of Rust, which are not an Exception
                await request.fail(scope, error)


class _Request:
    """The two ends of one request: messages of the client, and a response that may be broken off."""

    def __init__(self, path: str, send: Send, work: Work) -> None:
        self._path = path
        self._send = send
        self.work = work
        self.running = False
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._messages: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._started = self._finished = self._events = False

    async def listen(self, receive: Receive) -> None:
        """Read the client's messages as they come, so that a disconnect is noticed while the verb works."""
        try:
            while (message := await receive())["type"] != "http.disconnect":
                self._messages.put_nowait(message)
        except Exception as error:
            _LOG.warning("the client's messages broke off: %s", type(error).__name__)
        self.end("the client has gone")

    async def receive(self) -> Message:
        """Return the next ASGI message."""
        message = await self._messages.get()
        if message["type"] == "http.disconnect":
            self._messages.put_nowait(message)  # every reader gets it, as often as it asks
        return message

    async def send(self, message: Message) -> None:
        """Forward a part of the response, unless the request is finished."""
        if self._finished:
            return
        if message["type"] == "http.response.start":
            self._started = True
            self._events = (b"content-type", EVENT_STREAM.encode()) in {
                (name.lower(), value.partition(b";")[0]) for name, value in message["headers"]
            }
        elif message["type"] == "http.response.body":
            self._finished = not message.get("more_body", False)
        await self._send(message)

    async def answer(self, status: int, code: str, said: str) -> None:
        """Answer with an error if nothing was sent yet.

        A stream of events gets it as its last event. Any other response is left incomplete, so that the client notices.
        """
        body = error_json(self._path, status, code, said)
        if not self._started:
            headers = json_headers(status, len(body))
            await self.send({"type": "http.response.start", "status": status, "headers": headers})
            await self.send({"type": "http.response.body", "body": body})
        elif self._events and not self._finished:
            await self.send({"type": "http.response.body", "body": b"data: " + body + b"\n\n", "more_body": True})
        self._finished = True

    async def fail(self, scope: Scope, error: BaseException) -> None:
        """Answer with 500 for an exception that the application did not handle; only the log has the details."""
        if self._finished and self._started:  # Starlette has answered, and raised it again
            return
        _LOG.error("%s %s", scope["method"], scope["path"], exc_info=error)
        await self.answer(500, Code.INTERNAL, f"{type(error).__name__}; the service's log has the details")

    def end(self, reason: str) -> None:
        """Ask the work to end, and report to the application that its client has gone."""
        self.work.cancel(reason)
        if not self.left.done():
            self.left.set_result(None)
            self._messages.put_nowait(dict(_DISCONNECT))
