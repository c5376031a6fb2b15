"""Work for a client that may leave before it is done."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from poolbench_steerer.errors import ClientGoneError

_T = TypeVar("_T")


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
