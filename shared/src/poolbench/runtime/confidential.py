"""While a restricted task is in work, nothing that a library logs in this process can quote what it works on.

A passage may stand in any message: of a tokenizer, of a failed parse, in the text of an exception. So messages and
tracebacks of others are withheld for that time, whichever thread they come from; who logged what kind of thing, and
where, stays. The records of ``poolbench`` itself name tasks and counts only, and pass.
"""

from __future__ import annotations

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
    """How many restricted tasks this process works on, and the record factory that looks at it."""

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
    """Withholds what others log meanwhile, if the task is restricted."""
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
    """Return what a restricted task may show of an exception: its type, and the lines of code that it came through."""
    frames = extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames))
    return f"{type(error).__name__} at {places or 'an unknown place'}"
