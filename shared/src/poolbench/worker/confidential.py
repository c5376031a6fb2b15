"""Suppress the log messages of libraries while a restricted task runs.

Any message may quote a passage: of a tokenizer, of a failed parse, in the text of an exception. So messages and
tracebacks of all threads are withheld; logger, level and place are kept. The records of `poolbench` itself contain task
ids and counts only, and are not changed.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb
from typing import Any

WITHHELD = "(withheld while a restricted task is in work)"
OWN_LOGGERS = ("poolbench.task", "poolbench.queue")


class LogRedactor:
    """Number of restricted tasks in this process, and the record factory that reads it."""

    def __init__(self) -> None:
        self.num_tasks = 0
        self.lock = threading.Lock()
        self.original: Any = None

    def record(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = self.original(*args, **kwargs)
        if self.num_tasks and record.name not in OWN_LOGGERS:
            error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
            record.msg, record.args = f"{WITHHELD} {error}".strip(), ()
            record.exc_info = record.exc_text = record.stack_info = None
        return record


_REDACTOR = LogRedactor()


@contextmanager
def confidential(restricted: bool) -> Iterator[None]:
    """Withhold the messages of other loggers inside the block, if the task is restricted."""
    if not restricted:
        yield
        return
    with _REDACTOR.lock:
        if _REDACTOR.num_tasks == 0:
            _REDACTOR.original = logging.getLogRecordFactory()
            logging.setLogRecordFactory(_REDACTOR.record)
        _REDACTOR.num_tasks += 1
    try:
        yield
    finally:
        with _REDACTOR.lock:
            _REDACTOR.num_tasks -= 1
            if _REDACTOR.num_tasks == 0:
                logging.setLogRecordFactory(_REDACTOR.original)


def without_message(error: BaseException) -> str:
    """Return what may be shown of an exception in a restricted task: its type and the lines of code."""
    frames = extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames))
    return f"{type(error).__name__} at {places or 'an unknown place'}"
