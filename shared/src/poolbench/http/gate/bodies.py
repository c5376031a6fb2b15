"""Read request bodies: each bounded in size, time and rate, and all of them together in memory."""

import asyncio
import time

from starlette.types import Message, Scope

from poolbench.http.gate.headers import declared_bytes, is_json, sends_body
from poolbench.http.gate.refusal import Answer, RefusalError
from poolbench.settings import GateSettings
from poolbench.statuses import Code

_MIB = 1 << 20
_KIB = 1 << 10


class ClientGoneError(Exception):
    """The client left before its request was complete."""


class Body:
    """The bytes of one request; its size stays known after they were taken."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self.size = 0

    def add(self, chunk: bytes) -> None:
        """Append a chunk."""
        self._chunks.append(chunk)
        self.size += len(chunk)

    def take(self) -> bytes:
        """Return all bytes, once."""
        whole = b"".join(self._chunks)
        self._chunks.clear()
        return whole


class Bodies:
    """Reads bodies, and counts the bytes of all requests in progress."""

    def __init__(self, settings: GateSettings) -> None:
        self._settings = settings
        self.held_bytes = 0

    async def read(self, scope: Scope, answer: Answer, body: Body) -> None:
        """Read the body of a request into `body`, which counts until it is released.

        Raise RefusalError (408, 413 or 429), or ClientGoneError if the client has left.
        """
        if not sends_body(scope):
            return
        limit_mib = self._settings.max_json_mib if is_json(scope) else self._settings.max_body_mib
        _require_size(declared_bytes(scope) or 0, limit_mib)
        pace, more = _Pace(self._settings), True
        while more:
            message = await pace.next_message(answer, body.size)
            chunk = message.get("body", b"")
            _require_size(body.size + len(chunk), limit_mib)
            self._keep(body, chunk)
            more = message.get("more_body", False)

    def release(self, body: Body) -> None:
        """Free the bytes of a body."""
        self.held_bytes -= body.size
        body.take()
        body.size = 0

    def _keep(self, body: Body, chunk: bytes) -> None:
        limit_mib = self._settings.max_bodies_mib
        if self.held_bytes + len(chunk) > limit_mib * _MIB:
            said = f"the bodies of all requests under way together exceed {limit_mib:g} MiB; try again later"
            raise RefusalError(429, Code.BUSY, said, closes=True)
        self.held_bytes += len(chunk)
        body.add(chunk)


class _Pace:
    """Limits the time until the next part of a body."""

    def __init__(self, settings: GateSettings) -> None:
        self._settings = settings
        self._started_s = time.monotonic()

    async def next_message(self, answer: Answer, size: int) -> Message:
        """Return the next message. Raise RefusalError (408), or ClientGoneError if the client has left."""
        allowed_s = self._settings.body_grace_s + size / (self._settings.body_min_kib_per_s * _KIB)
        ends_at = self._started_s + min(allowed_s, self._settings.body_timeout_s)
        try:
            message = await asyncio.wait_for(answer.receive(), ends_at - time.monotonic())
        except TimeoutError:
            raise self._too_slow(size) from None
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        return message

    def _too_slow(self, size: int) -> RefusalError:
        settings, took_s = self._settings, time.monotonic() - self._started_s
        said = (
            f"the body came too slowly: {size} bytes in {took_s:.0f} s; send at least "
            f"{settings.body_min_kib_per_s:g} KiB/s after {settings.body_grace_s:g} s, "
            f"and all of it within {settings.body_timeout_s:g} s"
        )
        return RefusalError(408, Code.TOO_SLOW, said, closes=True)


def _require_size(size: int, limit_mib: float) -> None:
    if size > limit_mib * _MIB:
        said = f"the body has {size} bytes or more; at most {limit_mib:g} MiB are allowed: send it in parts"
        raise RefusalError(413, Code.TOO_LARGE, said, closes=True)
