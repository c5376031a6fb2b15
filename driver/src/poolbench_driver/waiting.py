"""What is said while a command waits: what for, and how long it will take."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Timer, current_thread, main_thread

#: After so long without a terminal, a line says what is waited for.
_QUIET_S = 2.0


def left_s(left: int, ended: int, worked_s: float) -> float | None:
    """Estimate the seconds that the remaining tasks of a stage take, from its rate so far.

    Return None if no task of the stage has ended in this run, because then the rate is unknown.

    Args:
        left: Number of tasks that have not ended.
        ended: Number of tasks that ended in this run.
        worked_s: Seconds in which at least one task of the stage was in flight, until the last task ended.
    """
    if left <= 0:
        return 0.0
    return left * max(worked_s, 1.0) / ended if ended else None


def longest_s(stages: Iterable[float | None]) -> float | None:
    """Return the seconds to the end of all stages, which run at the same time, or None if a stage has no rate yet."""
    remaining = list(stages)
    return None if None in remaining else max((seconds for seconds in remaining if seconds), default=0.0)


def about(seconds: float) -> str:
    """Return a duration as rounded text, such as `about 3 min`."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"about {seconds / size:.0f} {unit}"
    return f"about {seconds:.0f} s"


@contextmanager
def waiting(message: str) -> Iterator[None]:
    """Print `message` on stderr while the block runs.

    A terminal shows the message until the block ends. Elsewhere the message is printed once, if the block takes longer
    than `_QUIET_S` seconds. Threads other than the main thread print nothing, because several may wait at once.
    """
    if current_thread() is not main_thread():
        yield
        return
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(message):
            yield
        return
    timer = Timer(_QUIET_S, console.print, (message,), {"soft_wrap": True})
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
