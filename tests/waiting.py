"""Wait for a state, so that no test depends on the speed of the machine."""

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

#: Far more than any state takes on a slow, busy machine. Only a defect reaches it.
PATIENCE_S = 300.0
_STEP_S = 0.01


def wait_until(condition: Callable[[], T], within_s: float = PATIENCE_S, step_s: float = _STEP_S) -> T:
    """Return the first true value of `condition`, which is evaluated every `step_s`.

    Raises:
        AssertionError: The condition is still false after `within_s` seconds.
    """
    ends_at = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < ends_at, f"the state did not come within {within_s:g} s"
        time.sleep(step_s)
    return found


async def until(condition: Callable[[], T], within_s: float = PATIENCE_S) -> T:
    """Return the first true value of `condition`, as `wait_until` does, without blocking the event loop.

    Raises:
        AssertionError: The condition is still false after `within_s` seconds.
    """
    ends_at = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < ends_at, f"the state did not come within {within_s:g} s"
        await asyncio.sleep(_STEP_S)
    return found


@contextmanager
def process(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process whose streams are text, and end it with the block: `Popen` alone would wait for it.

    Args:
        command: Program and arguments.
        options: As of `subprocess.Popen`.
    """
    with subprocess.Popen(command, text=True, **options) as started:
        try:
            yield started
        finally:
            started.kill()
