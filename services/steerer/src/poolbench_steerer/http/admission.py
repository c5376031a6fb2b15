"""Limit the number of waiting texts, and cancel the work of clients that have gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fastapi import Request

from poolbench_steerer.errors import ClientGoneError, OverloadedError

_T = TypeVar("_T")


class Admission:
    """Counts the texts that HTTP requests wait for; one event loop uses it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.num_pending = 0

    @contextmanager
    def texts(self, count: int) -> Iterator[None]:
        """Take `count` places until the block ends; raise OverloadedError when there are fewer."""
        if self.num_pending + count > self.capacity:
            raise OverloadedError(
                f"{self.num_pending} texts are waiting and {count} more would exceed {self.capacity} "
                "(POOLBENCH_STEERER_MAX_PENDING_TEXTS); try again later, or send fewer at a time"
            )
        self.num_pending += count
        try:
            yield
        finally:
            self.num_pending -= count


async def until_disconnect(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of `work`; cancel it and raise ClientGoneError as soon as the client has gone."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError("the client has gone")
        return working.result()
    finally:
        leaving.cancel()
        working.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(request: Request) -> None:
    # The body has been read, so the only message left to come is the end of the connection.
    while (await request.receive())["type"] != "http.disconnect":
        pass
