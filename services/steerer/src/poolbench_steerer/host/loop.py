"""An event loop in a thread of its own, for callers in other threads and on other event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")
Emit = Callable[[Any], None]
_CHECK_INTERVAL_S = 1.0
_END = object()


class LoopThread:
    """Runs coroutines on its loop; who gives up waiting for one cancels it."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it was not stopped."""
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, _T], check: Callable[[], None] | None = None) -> _T:
        """Runs ``work`` for a synchronous caller.

        Args:
            check: Called every second or two meanwhile; what it raises cancels the work.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            while check is not None:
                try:
                    return future.result(timeout=_CHECK_INTERVAL_S)
                except TimeoutError:
                    if future.done():  # the work's own TimeoutError
                        raise
                    check()
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def run_async(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs ``work`` for a caller on any other event loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def stream(self, start: Callable[[Emit], Coroutine[Any, Any, None]]) -> AsyncGenerator[Any, None]:
        """What the work that ``start`` makes emits, as it emits it, for a caller on any other event loop."""
        loop, emitted = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def emit(item: Any) -> None:
            loop.call_soon_threadsafe(emitted.put_nowait, item)

        future = asyncio.run_coroutine_threadsafe(start(emit), self._loop)
        future.add_done_callback(lambda _: emit(_END))
        try:
            while (item := await emitted.get()) is not _END:
                yield item
            future.result()
        finally:
            future.cancel()

    def stop(self) -> None:
        """Ends the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
