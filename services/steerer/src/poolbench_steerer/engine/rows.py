"""Rows of the worker's table as the engine sees them: lent to a steered request, read when it is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from poolbench.errors import ReceiptError
from poolbench_steerer.plugin.counts import RowCount

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


class Rows:
    """Lends each row to one request at a time; who finds none free waits. Belongs to the engine's event loop."""

    def __init__(self, llm: AsyncLLM, num_rows: int) -> None:
        self._llm = llm
        self._num_lent = 0
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for row in range(1, num_rows):  # row 0 means: not steered
            self._free.put_nowait(row)
        self._unread: list[tuple[int, asyncio.Future[RowCount]]] = []
        self._reader: asyncio.Task[None] | None = None

    @property
    def in_use(self) -> int:
        """Steered requests inside the engine."""
        return self._num_lent

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[int]:
        """A row that is its holder's alone until the block ends."""
        row = await self._free.get()
        self._num_lent += 1
        try:
            yield row
        finally:
            self._num_lent -= 1
            self._free.put_nowait(row)

    async def count(self, row: int) -> RowCount:
        """What the worker counted for the request that holds ``row``.

        Raises:
            ReceiptError: Tensor-parallel workers counted differently.
        """
        future: asyncio.Future[RowCount] = asyncio.get_running_loop().create_future()
        self._unread.append((row, future))
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        return await future

    async def reached(self, row: int) -> int:
        """The first position that was not computed for the request that holds ``row``."""
        replies = await self._llm.collective_rpc("steering_reached", args=(row,))
        return int(replies[0])

    async def _read(self) -> None:
        # Whatever finishes while one call is under way is read by the next: about one call a step.
        while self._unread:
            batch, self._unread = self._unread, []
            try:
                replies = await self._llm.collective_rpc("steering_counts", args=([row for row, _ in batch],))
            except Exception as error:
                _fail([future for _, future in batch], error)
                continue
            for index, (_, future) in enumerate(batch):
                if not future.done():
                    settle(future, [reply[index] for reply in replies])


def settle(future: asyncio.Future[RowCount], replies: Sequence[dict[str, Any]]) -> None:
    """Gives a future the count that all tensor-parallel workers agree on, or the error that they don't."""
    if any(reply != replies[0] for reply in replies):
        future.set_exception(ReceiptError(f"tensor-parallel workers disagree about what was steered: {replies}"))
    else:
        future.set_result(RowCount.from_wire(replies[0]))


def _fail(futures: Sequence[asyncio.Future[RowCount]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
