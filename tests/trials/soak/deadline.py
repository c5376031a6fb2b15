"""A deadline for a whole program, which says what it was waiting for."""

from __future__ import annotations

import faulthandler
import os
import signal
from typing import Any

_END_WITHIN_S = 180.0  # for tidying up; after that the process ends at once


class HungError(Exception):
    """The program did not end in time."""


class Deadline:
    """Raises HungError in the main thread after some seconds; use it in a `with` block.

    Attributes:
        phase: What the program does now, for the message.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.phase = seconds, "the start of the cluster"
        self._late = False

    def __enter__(self) -> Deadline:
        self._before = signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def _ring(self, *_: Any) -> None:
        faulthandler.dump_traceback()
        if self._late:
            os._exit(3)
        self._late = True
        signal.setitimer(signal.ITIMER_REAL, _END_WITHIN_S)
        raise HungError(f"not at its end after {self.seconds:g} s; it waits for {self.phase}")
