"""HTTP routes for the state of a cluster: its queues, its dead letters, and the records in its object store.

The pooler serves these routes because it works without a language model and without a GPU. The routes only read, except
for `POST /cancel_run`, which writes the mark that ends a run.
"""

import re
from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from poolbench.config import StrictModel
from poolbench.contracts.bounds import KEY_PATTERN, RECORD_PATTERN, RECORDS_PATTERN, require_at_most
from poolbench.contracts.wire import OCTET_STREAM, RUN_CANCEL, RUN_STATE, SERVICES, run_path
from poolbench.errors import NotFoundError, shown
from poolbench.http.openapi import BINARY, errors
from poolbench.queue import TaskQueue
from poolbench.storage import Artifacts
from poolbench.storage.base import ObjectStore
from poolbench.storage.damage import described_damage

MAX_RECORDS = 100_000
"""Records of one list."""
MAX_RECORD_BYTES = 1 << 28
"""Size of one record."""
_INSTEAD = "read the object store itself: set POOLBENCH_STORE and its credentials"

LetterId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
Prefix = Annotated[str, Query(max_length=255, pattern=RECORDS_PATTERN, description="beginning of their paths")]
RecordPath = Annotated[str, Query(max_length=255, pattern=RECORD_PATTERN, description="path in the object store")]


class QueueState(BaseModel):
    """The queue of one service."""

    service: str
    waiting: int = Field(description="messages that wait")
    oldest_s: float = Field(description="age of the oldest one in seconds")
    not_understood: int = Field(description="messages that wait and are not valid tasks")
    dead_letters: int


class ClusterState(BaseModel):
    """The queues of all services, and what needs an operator."""

    queues: list[QueueState]
    newest_dead_letters: list[dict[str, Any]] = Field(description="a few of each service, without their tasks")
    damaged: str = Field(description="what was set aside as damaged, in one line; empty for nothing")


class LetterRow(BaseModel):
    """A dead letter in a list."""

    id: str
    service: str
    at: str | None = Field(description="when the message was given up; null if nothing says it")
    task_id: str
    kind: str
    size: int = Field(description="bytes of the message")
    reason: str


class LetterDetails(LetterRow):
    """All of a dead letter that may be displayed."""

    task: dict[str, Any] | None = Field(description="the task, if the message was one")
    text: str | None = Field(None, description="the kept bytes of a message that was not a task, as text")
    body: str | None = Field(None, description="the same in base64, where they are not text")


class LetterList(BaseModel):
    """The dead letters of all services, by service, oldest first."""

    dead_letters: list[LetterRow]


class Record(BaseModel):
    """An object of the store."""

    path: str
    size: int = Field(description="bytes")
    modified_s: float = Field(description="time of the last write, in seconds since 1970, by the clock of the store")


class RecordList(BaseModel):
    """Records by path."""

    now_s: float = Field(description="time by the clock of the store")
    records: list[Record]


class RunName(StrictModel):
    """Body of `POST /cancel_run`."""

    run: str = Field(max_length=200, pattern=KEY_PATTERN, description="id of a run")


class CancelledRun(BaseModel):
    """The run whose driver was asked to stop; the same `run` command continues it."""

    cancelled: str


class ClusterVerbs:
    """HTTP routes for the state of a cluster. The store and the queue are opened on first use."""

    def __init__(self, store: Callable[[], ObjectStore], queue: Callable[[], TaskQueue]) -> None:
        self._store, self._queue = store, queue

    def routes(self, router: APIRouter) -> None:
        """Add `GET /cluster`, `/dead_letters`, `/records` and `/record`, and `POST /cancel_run`."""
        reading: Any = errors(422, body=False)

        @router.get("/cluster", response_model=ClusterState, responses=errors(body=False))
        def cluster() -> dict[str, Any]:
            """Return the state of all queues, the newest dead letters, and what was set aside as damaged."""
            queue = self._queue()
            return {
                "queues": [{"service": name, **queue.summary(name)} for name in SERVICES],
                "newest_dead_letters": queue.newest_letters(),
                "damaged": described_damage(Artifacts(self._store())),
            }

        @router.get("/dead_letters", response_model=LetterList, responses=errors(body=False))
        def dead_letters() -> dict[str, Any]:
            """Return all dead letters."""
            queue = self._queue()
            return {"dead_letters": [letter.row() for name in SERVICES for letter in queue.dead_letters(name)]}

        details: Any = {"response_model": LetterDetails, "response_model_exclude_unset": True}

        @router.get("/dead_letters/{letter}", responses=errors(404, 422, body=False), **details)
        def dead_letter(letter: LetterId) -> dict[str, Any]:
            """Return one dead letter with its task."""
            queue = self._queue()
            for name in SERVICES:
                for one in queue.dead_letters(name):
                    if one.letter_id == letter:
                        return one.details()
            raise NotFoundError(f"there is no dead letter {letter}")

        @router.get("/records", response_model=RecordList, responses={**reading, **errors(413, 422, body=False)})
        def records(prefix: Prefix) -> dict[str, Any]:
            """Return the records of runs, scorers, activations or concepts below a path."""
            store = self._store()
            record_files = (info for info in store.list(prefix) if re.match(RECORD_PATTERN, info.path))
            infos = list(islice(record_files, MAX_RECORDS + 1))
            require_at_most("records in a list", len(infos), MAX_RECORDS, _INSTEAD)
            listed = [{"path": one.path, "size": one.size, "modified_s": one.modified_s} for one in infos]
            return {"now_s": store.now_s(prefix), "records": listed}

        content: Any = {200: {"description": "The bytes of the record.", "content": {OCTET_STREAM: BINARY}}}

        @router.get("/record", response_class=Response, responses={**content, **errors(404, 413, 422, body=False)})
        def record(path: RecordPath) -> Response:
            """Return one record as the store holds it."""
            store = self._store()
            size = next((info.size for info in store.list(path) if info.path == path), 0)
            require_at_most("bytes of a record", size, MAX_RECORD_BYTES, _INSTEAD)
            return Response(store.get(path), media_type=OCTET_STREAM)

        @router.post("/cancel_run", response_model=CancelledRun, responses=errors(404))
        def cancel_run(request: RunName) -> dict[str, Any]:
            """Ask the driver of a run to stop; finished work is kept."""
            store = self._store()
            if not store.exists(run_path(request.run, RUN_STATE)):
                raise NotFoundError(f"the object store has no run {shown(request.run)}")
            store.put(run_path(request.run, RUN_CANCEL), b"{}")
            return {"cancelled": request.run}
