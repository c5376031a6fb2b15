"""Rows of the worker's table: lent to a steered request, and read when it is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from poolbench.errors import ReceiptError
from poolbench_steerer.plugin.receipts import RowCount

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


class Rows:
    """Lend each row to one request at a time; further requests wait. Belongs to the engine's event loop."""

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
        """Return steered requests inside the engine."""
        return self._num_lent

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[int]:
        """Yield a row that is its holder's alone until the block ends."""
        row = await self._free.get()
        self._num_lent += 1
        try:
            yield row
        finally:
            self._num_lent -= 1
            self._free.put_nowait(row)

    async def count(self, row: int) -> RowCount:
        """Return the worker's counts for the request of `row`; raise ReceiptError if parallel workers disagree."""
        future: asyncio.Future[RowCount] = asyncio.get_running_loop().create_future()
        self._unread.append((row, future))
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        return await future

    async def reached(self, row: int) -> int:
        """Return the first position that was not computed for the request that holds `row`."""
        replies = await self._llm.collective_rpc("steering_reached", args=(row,))
        return int(replies[0])

    async def _read(self) -> None:
        # Requests that finish during one call are read by the next: about one call per step.
        while self._unread:
            batch, self._unread = self._unread, []
            try:
                replies = await self._llm.collective_rpc("steering_counts", args=([row for row, _ in batch],))
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for index, (_, future) in enumerate(batch):
                if not future.done():
                    settle(future, [reply[index] for reply in replies])


def settle(future: asyncio.Future[RowCount], replies: Sequence[dict[str, Any]]) -> None:
    """Set the count that all tensor-parallel workers agree on, or an error if they do not."""
    if any(reply != replies[0] for reply in replies):
        future.set_exception(ReceiptError(f"tensor-parallel workers disagree about what was steered: {replies}"))
    else:
        future.set_result(RowCount.from_wire(replies[0]))
