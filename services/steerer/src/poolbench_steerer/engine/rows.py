"""What the engine lends to requests: places for texts of tasks, and rows of the worker's table."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from poolbench.errors import ReceiptError
from poolbench_steerer.engine.requests import MAX_STATE_BYTES
from poolbench_steerer.engine.stopping import Scores
from poolbench_steerer.plugin.receipts import RowCount

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

#: Places in the engine that texts of tasks leave free, and the share of few places.
_FREE_PLACES, _FREE_SHARE = 16, 8
#: Seconds after the last request during which tasks keep to few places.
_SOON_S = 10.0


def num_task_places(num_rows: int, num_seqs: int) -> int:
    """Return the maximum number of texts of tasks in the engine at once.

    vLLM serves in order of arrival, and a step is full with `num_seqs` texts. In a free place, a text that a client
    waits for can begin with the next step, and not only after the texts of a task, which may be thousands.
    """
    places = min(num_rows, num_seqs)
    return max(1, places - min(_FREE_PLACES, places // _FREE_SHARE))


class TaskPlaces:
    """The places of texts of tasks. Belongs to the engine's event loop.

    Args:
        num: Number of places while no client waits for a text.
        num_beside_requests: Number of places while a client waits. On a CPU, the time of a step grows with its texts,
            so few places keep steps short.
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
        """Hold a place within the block for a text of a task. For any other text, limit tasks to few places."""
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


class Budget:
    """An amount that texts share. The first to wait is the first served. Belongs to the engine's event loop."""

    def __init__(self, amount: int) -> None:
        self.left = amount
        self._turn = asyncio.Lock()
        self._returned = asyncio.Event()

    @asynccontextmanager
    async def share(self, amount: int) -> AsyncIterator[None]:
        """Wait for an amount, and hold it until the block ends."""
        if amount:
            async with self._turn:
                while amount > self.left:
                    self._returned.clear()
                    await self._returned.wait()
                self.left -= amount
        try:
            yield
        finally:
            self.left += amount
            self._returned.set()


class Rows:
    """Lend each row to one request at a time; further requests wait. Belongs to the engine's event loop."""

    def __init__(self, llm: "AsyncLLM", num_rows: int) -> None:
        self._num_lent = 0
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for row in range(1, num_rows):  # row 0 means: not steered
            self._free.put_nowait(row)
        self._counts = _Calls(llm, "steering_counts")
        self._scores = _Calls(llm, "steering_scores")
        self._pooled = _Calls(llm, "steering_pooled")
        self._forgotten = _Calls(llm, "steering_forget")
        self._state_bytes = Budget(MAX_STATE_BYTES)

    @property
    def in_use(self) -> int:
        """Return steered requests inside the engine."""
        return self._num_lent

    @asynccontextmanager
    async def lent(self, state_bytes: int = 0) -> AsyncIterator[int]:
        """Yield a row that no other request uses until the block ends. Its text may keep states of some bytes."""
        async with self._state_bytes.share(state_bytes):
            row = await self._free.get()
            self._num_lent += 1
            try:
                yield row
            finally:
                try:
                    if state_bytes:  # also of a text that was left before its end
                        await asyncio.shield(self._forgotten.result(row))
                finally:
                    self._num_lent -= 1
                    self._free.put_nowait(row)

    async def count(self, row: int, end: int) -> RowCount:
        """Return the counts of the worker for the request of `row`, whose text ends before position `end`.

        Raise ReceiptError if parallel workers disagree.
        """
        return agreed(await self._counts.result((row, end)))

    async def scores(self, row: int, first: int, stop: int, num_readings: int) -> list[Scores]:
        """Return the scores of the request of `row` at positions `first` to `stop` - 1."""
        flat = (await self._scores.result((row, first, stop, num_readings)))[0]
        return [tuple(flat[at : at + num_readings]) for at in range(0, len(flat), num_readings)]

    async def pooled(self, text: dict[str, Any]) -> list[Any] | None:
        """Return what `KeptStates.pooled` returns for the request of a row."""
        answer: list[Any] | None = (await self._pooled.result(text))[0]
        return answer


class _Calls:
    """Call a method of the workers for several requests at once. Belongs to the engine's event loop.

    The method takes a list of questions and returns one answer to each.
    """

    def __init__(self, llm: "AsyncLLM", method: str) -> None:
        self._llm, self._method = llm, method
        self._waiting: list[tuple[Any, asyncio.Future[list[Any]]]] = []
        self._caller: asyncio.Task[None] | None = None

    async def result(self, question: Any) -> list[Any]:
        """Return the answer of each tensor-parallel worker."""
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        if self._caller is None or self._caller.done():
            self._caller = asyncio.create_task(self._call())
        return await future

    async def _call(self) -> None:
        # Questions that come during one call are asked by the next: about one call per step.
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                replies = await self._llm.collective_rpc(self._method, args=([question for question, _ in batch],))
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for index, (_, future) in enumerate(batch):
                if not future.done():
                    future.set_result([reply[index] for reply in replies])


def agreed(replies: Sequence[dict[str, Any]]) -> RowCount:
    """Return the count of the tensor-parallel workers. Raise ReceiptError if the workers disagree."""
    if any(reply != replies[0] for reply in replies):
        raise ReceiptError(f"tensor-parallel workers disagree about what was steered: {replies}")
    return RowCount.from_wire(replies[0])
