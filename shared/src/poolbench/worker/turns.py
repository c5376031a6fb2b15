"""Turns at what one thread at a time may use: requests come before tasks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from poolbench.cancellation import between_steps

#: Seconds after which a task no longer lets requests go before it, so that no stream of requests stops a run.
_PATIENCE_S = 5.0


class Turns:
    """A lock that a task releases between two steps if a request waits for the lock."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False
        self._num_requests = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Hold the lock within the block. The wait is at most one step of a task."""
        with self._changed:
            self._num_requests += 1
            try:
                self._changed.wait_for(lambda: not self._taken)
                self._taken = True
            finally:
                self._num_requests -= 1
        try:
            yield
        finally:
            self._free()

    @contextmanager
    def task(self) -> Iterator[None]:
        """Hold the lock within the block.

        Waiting requests go first, including wherever a loop calls `check_cancelled`.
        """
        self._take_after_requests()
        try:
            with between_steps(self._give_way):
                yield
        finally:
            self._free()

    def _give_way(self) -> None:
        if self._num_requests:
            self._free()
            self._take_after_requests()

    def _take_after_requests(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._taken and not self._num_requests, timeout=_PATIENCE_S)
            self._changed.wait_for(lambda: not self._taken)
            self._taken = True

    def _free(self) -> None:
        with self._changed:
            self._taken = False
            self._changed.notify_all()
