"""The context of a handler: it can be cancelled, and it raises ordinary exceptions only."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from poolbench.cancellation import Work, working
from poolbench.runtime.taskio import TaskIO

_LOOK_S = 2.0


class _TaskWork(Work):
    """Work that ends when the run that sent its task is cancelled, checked every two seconds."""

    def __init__(self, io: TaskIO) -> None:
        super().__init__()
        self._io = io
        self._looked_s = time.monotonic()

    def check(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self._io.check_cancelled()


@contextmanager
def handling(io: TaskIO) -> Iterator[None]:
    """Run a handler inside the block.

    Raises:
        RuntimeError: Instead of what is no `Exception`: a panic of a library in Rust, or a call of `sys.exit`. It
            would end the thread that consumes the queue.
    """
    try:
        with working(_TaskWork(io)):
            yield
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
