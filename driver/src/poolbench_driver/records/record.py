"""The records of runs in the object store, and runs of a folder and of the store, each once.

A driver writes its state at least every 10 s. Its age is counted by the clock of the store. The clocks of the machines
play no part.
"""

import gzip
import json
import re
import socket
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from poolbench.contracts.bounds import KEY_PATTERN
from poolbench.contracts.wire import RUN_CANCEL, RUN_FILES, RUN_PROGRESS, RUN_STATE, RUNS_FOLDER, run_path
from poolbench.errors import IntegrityError, NotFoundError, shown
from poolbench.queue.envelope import shown_text
from poolbench.statuses import RunState
from poolbench.storage import ObjectInfo
from poolbench.storage.base import ObjectStore
from poolbench_driver.records.folder import UNFINISHED, RunFolder, list_runs
from poolbench_driver.records.progress import Progress

STATE, PROGRESS, CANCEL = RUN_STATE, RUN_PROGRESS, RUN_CANCEL
CONFIG, KEYS, FURTHER = "config.json", "keys.json.gz", "further.json.gz"
#: A driver whose state is older than this is gone.
DIED_AFTER_S = 60.0
_KEYS = TypeAdapter(list[str])
_MAX_SHOWN = 500


class PublishedState(BaseModel):
    """The state of a run as its driver published it. Others may write into a store too, so all of it is checked."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    state: RunState
    host: str = ""
    pid: int = Field(0, ge=0, lt=2**63)
    folder: str = ""  # the run's folder on that host
    updated_at: str = ""  # when the state changed, by the clock of that host
    heartbeat_at: str = ""  # when it was written, by the same clock; for people
    code_version: str = ""
    schema_version: int | None = None  # of the run's files
    tasks: int | None = Field(None, ge=0, lt=2**63)
    tasks_done: int | None = Field(None, ge=0, lt=2**63)
    failures: int | None = Field(None, ge=0, lt=2**63)
    resent: int | None = Field(None, ge=0, lt=2**63)
    results_digest: str | None = None

    @field_validator("host", "folder", "updated_at", "heartbeat_at", "code_version", "results_digest")
    @classmethod
    def _printable(cls, text: str | None) -> str | None:
        return None if text is None else shown_text(text[:_MAX_SHOWN])


class PublishedConfig(BaseModel):
    """What a run measures, of its configuration; checked as `PublishedState`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str = ""
    concepts: tuple[str, ...] = ()

    @property
    def concept_ids(self) -> tuple[str, ...]:
        """Return the concepts that it names, which are none in most suites."""
        return self.concepts

    @field_validator("model", "concepts")
    @classmethod
    def _printable(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if isinstance(value, str):
            return shown_text(value[:_MAX_SHOWN])
        return tuple(shown_text(name[:_MAX_SHOWN]) for name in value[:_MAX_SHOWN])


@dataclass(frozen=True)
class RunRecord:
    """A run that the object store has a record of."""

    id: str
    state: dict[str, Any] = field(default_factory=dict)  # as `RunFolder.read_state`
    modified_s: float = 0.0  # when the state was written, by the store's clock


class RunRecords:
    """The records of all runs in an object store."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def all(self) -> list[RunRecord]:
        """Return all runs, the one that was written last first."""
        by_run: dict[str, dict[str, ObjectInfo]] = {}
        for info in self.store.list(f"{RUNS_FOLDER}/"):
            _, run_id, *rest = info.path.split("/")
            by_run.setdefault(run_id, {})["/".join(rest)] = info
        records = (self._read(run_id, files) for run_id, files in by_run.items() if re.fullmatch(KEY_PATTERN, run_id))
        return sorted((record for record in records if record), key=lambda record: record.modified_s, reverse=True)

    def get(self, run_id: str) -> RunRecord | None:
        """Return one run; None if there is no record of it."""
        if not re.fullmatch(KEY_PATTERN, run_id):
            return None
        folder = run_path(run_id)
        return self._read(run_id, {info.path.removeprefix(folder): info for info in self.store.list(folder)})

    def config(self, run_id: str) -> PublishedConfig:
        """Return what a run measures; nothing where its configuration is damaged or not there."""
        try:
            return PublishedConfig.model_validate_json(self.store.get(run_path(run_id, CONFIG)))
        except (NotFoundError, ValidationError, RecursionError):
            return PublishedConfig()

    def progress(self, run_id: str) -> Progress | None:
        """Return how far a run is; None where its driver published nothing, or something damaged."""
        try:
            return Progress.model_validate_json(self.store.get(run_path(run_id, PROGRESS)))
        except (NotFoundError, ValidationError, RecursionError):
            return None

    def keys(self, run_id: str) -> frozenset[str]:
        """Return the keys of all artifacts that a run needs, and of what was made for it since.

        Raise IntegrityError if they are damaged, or those of the run are not there.
        """
        return self._keys(run_id, KEYS) | self._further(run_id)

    def keep(self, run_id: str, keys: Iterable[str]) -> None:
        """Let `gc` keep further artifacts for as long as there is a record of a run."""
        with suppress(IntegrityError):  # a damaged list begins again
            keys = self._further(run_id).union(keys)
        self.store.put(run_path(run_id, FURTHER), encode_keys(keys))

    def _further(self, run_id: str) -> frozenset[str]:
        return self._keys(run_id, FURTHER) if self.store.exists(run_path(run_id, FURTHER)) else frozenset()

    def _keys(self, run_id: str, file: str) -> frozenset[str]:
        try:
            return frozenset(_KEYS.validate_json(gzip.decompress(self.store.get(run_path(run_id, file)))))
        except (NotFoundError, ValidationError, OSError, EOFError, ValueError, zlib.error):
            raise IntegrityError(
                f"{run_path(run_id, file)} is damaged or gone, so the artifacts that run {run_id} needs are unknown; "
                f"the same command writes it again, and `poolbench-driver gc --forget {run_id}` removes the record"
            ) from None

    def cancel(self, run_id: str) -> None:
        """Ask the driver that works on a run to stop."""
        self.store.put(run_path(run_id, CANCEL), b"{}")

    def forget(self, run_id: str) -> None:
        """Remove the record of a run; the keys go last, so that an interrupted removal keeps the artifacts."""
        for info in list(self.store.list(run_path(run_id, RUN_FILES))):
            self.store.delete(info.path)
        for name in (STATE, PROGRESS, CONFIG, CANCEL, FURTHER, KEYS):
            self.store.delete(run_path(run_id, name))

    def _read(self, run_id: str, files: dict[str, ObjectInfo]) -> RunRecord | None:
        if STATE not in files:
            return RunRecord(run_id, {}, files[KEYS].modified_s) if KEYS in files else None
        try:
            raw = self.store.get(run_path(run_id, STATE))
        except NotFoundError:  # removed since it was listed
            return None
        modified_s = files[STATE].modified_s
        try:
            state = PublishedState.model_validate_json(raw).model_dump(exclude_none=True)
        except (ValidationError, RecursionError):
            return RunRecord(run_id, {"state": RunState.DAMAGED}, modified_s)
        if state["state"] in UNFINISHED and self.store.now_s(run_path(run_id, STATE)) - modified_s > DIED_AFTER_S:
            state["state"] = RunState.DIED
        return RunRecord(run_id, state, modified_s)


def encode_keys(keys: Iterable[str]) -> bytes:
    """Return keys as they are stored in a record."""
    return gzip.compress(json.dumps(sorted(keys)).encode(), mtime=0)


LATEST = "latest"


@dataclass(frozen=True)
class Run:
    """A run that has a folder here, a record in the object store, or both."""

    id: str
    folder: RunFolder | None
    record: RunRecord | None

    @property
    def state(self) -> dict[str, Any]:
        """Return the state of the run.

        Folder and record differ if another machine works on the run, or if the store was away. The folder is right
        about a driver that lives on this machine. Of two states that this machine wrote, the later one is right: they
        have one clock. Otherwise the record is right, because every driver writes one.
        """
        if self.folder is None:
            return self.record.state if self.record else {}
        here = self.folder.read_state()
        if self.record is None or not self.record.state:
            return here
        record_state = self.record.state
        if here.get("host") != socket.gethostname():
            return record_state
        if here.get("state") in UNFINISHED:
            return here
        same_clock = record_state.get("host") == here["host"]
        is_later = str(here.get("updated_at")) >= str(record_state.get("updated_at"))
        return here if same_clock and is_later else record_state

    @property
    def unfinished(self) -> bool:
        """Return whether a driver works on the run."""
        return self.state.get("state") in UNFINISHED


class Runs:
    """The runs below a folder, and those in an object store if one is given."""

    def __init__(self, output: Path, records: RunRecords | None) -> None:
        self.output, self.records = output, records

    def all(self) -> list[Run]:
        """Return all runs, newest first: those of the store, then those that have a folder only."""
        folders = {folder.id: folder for folder in list_runs(self.output)}
        stored = [Run(record.id, folders.pop(record.id, None), record) for record in self._records()]
        return [*stored, *(Run(folder.id, folder, None) for folder in folders.values())]

    def find(self, name: str) -> Run:
        """Return a run by id. `latest` is the one of the folder, or the newest of the store if there is none.

        Raise NotFoundError with the runs there are.
        """
        try:
            folder = RunFolder.find(self.output, name)
        except NotFoundError:
            folder = None
        if folder is not None:
            return Run(folder.id, folder, self.records.get(folder.id) if self.records else None)
        for record in self._records():
            if name in (LATEST, record.id):
                return Run(record.id, None, record)
        places = f"{self.output} or the object store" if self.records else self.output
        run_ids = ", ".join(run.id for run in self.all()) or "none"
        raise NotFoundError(f"no run {shown(name)} in {places}; there are: {run_ids}")

    def _records(self) -> Iterator[RunRecord]:
        yield from self.records.all() if self.records else ()
