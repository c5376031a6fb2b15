"""Cancellation of work whose client has left or whose deadline has passed.

Threads cannot be killed, so long loops check. The code that starts the work makes it current with `working`; loops
call `check_cancelled` between two steps. Without current work the call does nothing, so the same functions serve tasks,
requests and tests. The current work is a context variable: it follows the code into worker threads of Starlette and
of `asyncio.to_thread`.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from poolbench.errors import PoolbenchError
from poolbench.statuses import Code


class WorkCancelledError(PoolbenchError):
    """The work was cancelled: its client left, or its deadline passed."""

    code = Code.DEADLINE
    http_status = 504


class Work:
    """One piece of work. Any thread may cancel the work, and it ends by itself after `deadline_s` seconds."""

    def __init__(self, deadline_s: float | None = None) -> None:
        self._deadline_s = deadline_s
        self._ends_at = None if deadline_s is None else time.monotonic() + deadline_s
        self._reason = ""

    def cancel(self, reason: str) -> None:
        """End the work at its next check. If the work is cancelled twice, the first reason counts."""
        self._reason = self._reason or reason

    @property
    def cancelled(self) -> bool:
        """Return whether the next check raises."""
        if not self._reason and self._ends_at is not None and time.monotonic() >= self._ends_at:
            self.cancel(f"the work took longer than its deadline of {self._deadline_s:g} s; ask for less at a time")
        return bool(self._reason)

    def check(self) -> None:
        """Raise WorkCancelledError if the work was cancelled."""
        if self.cancelled:
            raise WorkCancelledError(self._reason)


_CURRENT: ContextVar[Work | None] = ContextVar("poolbench_work", default=None)


@contextmanager
def working(work: Work) -> Iterator[None]:
    """Make `work` the current work of this context, and of the threads and tasks that are started in the context."""
    token = _CURRENT.set(work)
    try:
        yield
    finally:
        _CURRENT.reset(token)


class _StepWork(Work):
    """Work that calls a function between two steps, after the check of the work around it."""

    def __init__(self, outer: Work | None, between: Callable[[], None]) -> None:
        super().__init__()
        self._outer, self._between = outer, between

    def check(self) -> None:
        if self._outer is not None:
            self._outer.check()
        self._between()


@contextmanager
def between_steps(call: Callable[[], None]) -> Iterator[None]:
    """Call a function wherever a loop inside the block calls `check_cancelled`."""
    with working(_StepWork(_CURRENT.get(), call)):
        yield


def check_cancelled() -> None:
    """Raise WorkCancelledError if the current work was cancelled. Loops call this between two steps."""
    work = _CURRENT.get()
    if work is not None:
        work.check()
