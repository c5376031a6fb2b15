"""The ids of the work that a thread or coroutine does: run, task and request. Logs carry them, and the engine's ids.

Context variables follow the code into coroutines and into worker threads of Starlette and of `asyncio.to_thread`.
"""

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

RUN, TASK, REQUEST, TRACE = "run_id", "task_id", "request_id", "trace_id"

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_HEADER = b"x-request-id"
_NONE: Mapping[str, str] = MappingProxyType({})
_IDS: ContextVar[Mapping[str, str]] = ContextVar("poolbench_ids", default=_NONE)


@contextmanager
def identified(**ids: str) -> Iterator[None]:
    """Add ids to the current ids for the duration of the block. Empty ids are left out."""
    token = _IDS.set({**_IDS.get(), **{name: value for name, value in ids.items() if value}})
    try:
        yield
    finally:
        _IDS.reset(token)


def current_ids() -> Mapping[str, str]:
    """Return the ids of the present work by name."""
    return _IDS.get()


def new_request_id() -> str:
    """Return an id for a request that has none."""
    return uuid.uuid4().hex


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the id that a client gave to its request. If there is no single safe id, return a new id.

    Safe ids have 1 to 128 letters, digits and `._:-`, so that they can be written into logs and headers.
    """
    sent = [value for name, value in headers if name.lower() == _HEADER]
    return sent[0].decode() if len(sent) == 1 and _REQUEST_ID.fullmatch(sent[0]) else new_request_id()


def engine_request_id() -> str:
    """Return a unique id that begins with the id of the present request or task."""
    ids = current_ids()
    origin = ids.get(REQUEST) or ids.get(TASK)
    return f"{origin}-{uuid.uuid4().hex}" if origin else uuid.uuid4().hex
