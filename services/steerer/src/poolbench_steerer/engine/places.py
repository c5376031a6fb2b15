"""Places in the engine for texts of tasks, so that texts that clients wait for go first."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

#: Places in the engine that texts of tasks leave free, and the share of few places.
_FREE_PLACES, _FREE_SHARE = 16, 8
#: Seconds after the last request during which tasks keep to few places.
_SOON_S = 10.0


def num_task_places(num_rows: int, num_seqs: int) -> int:
    """Return how many texts of tasks may be in the engine at once.

    vLLM serves in order of arrival, and steps are full with `num_seqs` texts. The places that are left let a text that
    a client waits for begin with the next step, instead of after those of a task, which may be thousands.
    """
    places = min(num_rows, num_seqs)
    return max(1, places - min(_FREE_PLACES, places // _FREE_SHARE))


class TaskPlaces:
    """The places of texts of tasks. Belongs to the engine's event loop.

    Args:
        num: Places while no client waits for a text.
        num_beside_requests: Places otherwise. On a CPU a step takes as long as it has texts, so few keep it short.
    """

    def __init__(self, num: int, num_beside_requests: int) -> None:
        self._num, self._num_beside_requests = num, min(num, num_beside_requests)
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._num_requests = 0
        self._requested_s = float("-inf")

    @property
    def num(self) -> int:
        """Return the places that there are now."""
        soon = self._num_requests > 0 or time.monotonic() - self._requested_s < _SOON_S
        return self._num_beside_requests if soon else self._num

    @asynccontextmanager
    async def place(self, *, of_task: bool) -> AsyncIterator[None]:
        """Hold a place within the block if the text is of a task; otherwise keep tasks to few places."""
        if not of_task:
            with self._request():
                yield
            return
        await self._take()
        try:
            yield
        finally:
            self._taken -= 1
            self._grant()

    @contextmanager
    def _request(self) -> Iterator[None]:
        self._num_requests += 1
        try:
            yield
        finally:
            self._num_requests -= 1
            self._requested_s = time.monotonic()

    async def _take(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the place came together with the cancellation
                self._taken -= 1
                self._grant()
            raise

    def _grant(self) -> None:
        while self._waiting and self._taken < self.num:
            turn = self._waiting.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)
