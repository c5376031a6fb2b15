"""A service whose verbs do what no verb should, for tests behind a real Ray Serve."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fastapi.responses import StreamingResponse

from poolbench.cancellation import check_cancelled

if TYPE_CHECKING:
    from fastapi import APIRouter

UNPICKLING_S = 600


def _unpickle() -> Exception:
    time.sleep(UNPICKLING_S)  # as long as it takes to import what the exception comes from
    return RuntimeError("unpickled")


class BombError(Exception):
    """Freezes the process that unpickles it."""

    def __reduce__(self) -> Any:
        return _unpickle, ()


class ExplodingService:
    """Stands in for the prober."""

    name = "prober"

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}
        self._working = self._ended = 0
        self._lock = threading.Lock()

    def routes(self, router: APIRouter) -> None:
        """The verbs."""
        router.post("/echo")(self.echo)
        router.post("/explode")(self.explode)
        router.post("/stream")(self.stream)
        router.post("/work")(self.work)

    def echo(self, body: dict[str, Any]) -> dict[str, Any]:
        """What was sent."""
        return body

    def explode(self) -> None:
        """Fails with an exception that must not be unpickled."""
        raise BombError("boom")

    async def stream(self) -> StreamingResponse:
        """Fails in the middle of an answer."""

        async def parts() -> AsyncIterator[bytes]:
            yield b"part"
            raise BombError("boom")

        return StreamingResponse(parts(), media_type="text/plain")

    def work(self) -> None:
        """Works until nobody waits for it."""
        self._count(1, 0)
        try:
            while True:
                check_cancelled()
                time.sleep(0.02)
        finally:
            self._count(-1, 1)

    def _count(self, working: int, ended: int) -> None:
        with self._lock:
            self._working += working
            self._ended += ended

    def health(self) -> dict[str, Any]:
        """How many are at work, and how many were ended."""
        return {"working": self._working, "ended": self._ended}


def create() -> ExplodingService:
    """The service, for the runtime."""
    return ExplodingService()
