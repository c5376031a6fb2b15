"""What is said while a command waits, and nothing else can be seen."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer, current_thread, main_thread

#: After so long without a terminal, a line says what is waited for.
_QUIET_S = 2.0


@contextmanager
def waiting(message: str) -> Iterator[None]:
    """Say on stderr what the block waits for: on a terminal while it does, elsewhere once, if it takes longer.

    Threads beside the main one say nothing: several may wait at once.
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
