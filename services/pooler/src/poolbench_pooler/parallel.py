"""Parse the texts of a task in several processes: spaCy uses one core, and a language model waits for annotations."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache

from poolbench.cancellation import check_cancelled
from poolbench.settings import PoolerSettings
from poolbench_pooler.annotate import BATCH_SIZE, Columns, Pipeline, check_text, load_pipeline, parse

#: Texts that a process takes at once: batches of the pipeline, so that results do not depend on the processes.
_PORTION = 4 * BATCH_SIZE
_LOOK_S = 1.0


def parse_together(pipeline: Pipeline, texts: Sequence[str], names: Sequence[str]) -> Iterator[Columns]:
    """Yield the same as `parse`, computed by as many processes as POOLBENCH_POOLER_PROCESSES asks for.

    Raises:
        InputError: As `parse`, before the first text is parsed.
        MemoryError: A process was killed; the task is delivered again.
    """
    number = PoolerSettings.load().processes
    if number == 1 or len(texts) <= _PORTION:
        yield from parse(pipeline, texts, names)
        return
    for text, name in zip(texts, names, strict=True):
        check_text(text, name)
    portions = [list(texts[start : start + _PORTION]) for start in range(0, len(texts), _PORTION)]
    pool = _processes(number)
    pending = [pool.submit(_parse, pipeline.name, portion) for portion in portions]
    try:
        for future in pending:
            for columns in future.result():
                check_cancelled()
                yield columns
    except BrokenProcessPool as error:
        _processes.cache_clear()
        raise MemoryError("a process that parses texts was killed, perhaps for lack of memory") from error
    finally:
        for future in pending:
            future.cancel()


@lru_cache(maxsize=1)
def _processes(number: int) -> ProcessPoolExecutor:
    # Not forked: a replica has many threads, and a lock of one of them would stay locked in the copy.
    return ProcessPoolExecutor(
        number, multiprocessing.get_context("spawn"), initializer=_end_with_owner, initargs=(os.getpid(),)
    )


def _parse(pipeline: str, texts: Sequence[str]) -> list[Columns]:
    return list(parse(load_pipeline(pipeline), texts))


def _end_with_owner(owner: int) -> None:
    """End this process when the replica is gone: no other process would end it after SIGKILL."""

    def watch() -> None:
        while os.getppid() == owner:
            time.sleep(_LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, name="owner-watch", daemon=True).start()
