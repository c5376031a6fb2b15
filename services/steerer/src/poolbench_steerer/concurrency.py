"""Run coroutines together, and let coroutines outlive their caller."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")
OnDone = Callable[[int], None]  # called with the number of coroutines that have finished
_REPORT_INTERVAL_S = 1.0


async def run_all(coroutines: Sequence[Coroutine[Any, Any, _T]], on_done: OnDone | None = None) -> list[_T]:
    """Run all coroutines at once. The first error cancels the rest and is raised unchanged.

    `on_done` is called in a thread, because it may write to a store: when the first coroutine has finished, and then at
    most once a second.
    """
    finished, reported_s = 0, float("-inf")

    async def counted(coroutine: Coroutine[Any, Any, _T]) -> _T:
        nonlocal finished, reported_s
        result = await coroutine
        finished += 1
        if on_done is not None and time.monotonic() - reported_s >= _REPORT_INTERVAL_S:
            reported_s = time.monotonic()
            await asyncio.to_thread(on_done, finished)
        return result

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(counted(coroutine)) for coroutine in coroutines]
    except BaseExceptionGroup as group_error:
        first = group_error.exceptions[0]
        raise first from first.__cause__  # keep its cause, which says what happened, and drop the group
    return [task.result() for task in tasks]


async def uncancelled(work: Coroutine[Any, Any, _T]) -> _T:
    """Let `work` finish even if the caller is cancelled, so that a client that leaves does not undo a shared load."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
