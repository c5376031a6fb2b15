"""The records of runs in the object store.

A driver writes its state at least every 10 s. Its age is counted by the clock of the store. The clocks of the machines
play no part.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from poolbench.contracts.bounds import KEY_PATTERN
from poolbench.contracts.wire import RUN_CANCEL, RUN_FILES, RUN_PROGRESS, RUN_STATE, RUNS_FOLDER, run_path
from poolbench.errors import IntegrityError, NotFoundError
from poolbench.statuses import RunState
from poolbench.storage import ObjectInfo
from poolbench.storage.base import ObjectStore
from poolbench_driver.records.progress import MAX_SHOWN, Progress, Published, PublishedText
from poolbench_driver.records.run import UNFINISHED

STATE, PROGRESS, CANCEL = RUN_STATE, RUN_PROGRESS, RUN_CANCEL
CONFIG, KEYS, FURTHER = "config.json", "keys.json.gz", "further.json.gz"
#: A driver whose state is older than this is gone.
DIED_AFTER_S = 60.0
_KEYS = TypeAdapter(list[str])


class PublishedState(Published):
    """The state of a run as its driver published it."""

    state: RunState
    host: PublishedText = ""
    pid: int = Field(0, ge=0, lt=2**63)
    folder: PublishedText = ""  # the run's folder on that host
    updated_at: PublishedText = ""  # when the state changed, by the clock of that host
    heartbeat_at: PublishedText = ""  # when it was written, by the same clock; for people
    code_version: PublishedText = ""
    schema_version: int | None = None  # of the run's files
    tasks: int | None = Field(None, ge=0, lt=2**63)
    tasks_done: int | None = Field(None, ge=0, lt=2**63)
    failures: int | None = Field(None, ge=0, lt=2**63)
    resent: int | None = Field(None, ge=0, lt=2**63)
    results_digest: PublishedText | None = None


class PublishedConfig(Published):
    """The settings of a run that lists show."""

    model: PublishedText = ""
    concepts: Annotated[tuple[PublishedText, ...], AfterValidator(lambda names: names[:MAX_SHOWN])] = ()

    @property
    def concept_ids(self) -> tuple[str, ...]:
        """Return the concepts that it names, which are none in most suites."""
        return self.concepts


class RunRecords:
    """The records of all runs in an object store."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def all(self) -> dict[str, dict[str, Any]]:
        """Return the states of all runs by id. The run that was written last comes first."""
        by_run: dict[str, dict[str, ObjectInfo]] = {}
        for info in self.store.list(f"{RUNS_FOLDER}/"):
            _, run_id, *rest = info.path.split("/")
            by_run.setdefault(run_id, {})["/".join(rest)] = info
        files_by_run = {run_id: files for run_id, files in by_run.items() if re.fullmatch(KEY_PATTERN, run_id)}
        newest_first = sorted(files_by_run.items(), key=lambda item: _written_s(item[1]), reverse=True)
        states = ((run_id, self._read(run_id, files)) for run_id, files in newest_first)
        return {run_id: state for run_id, state in states if state is not None}

    def get(self, run_id: str) -> dict[str, Any] | None:
        """Return the state of one run: {} if the run has no state yet, or None if there is no record of the run."""
        if not re.fullmatch(KEY_PATTERN, run_id):
            return None
        folder = run_path(run_id)
        return self._read(run_id, {info.path.removeprefix(folder): info for info in self.store.list(folder)})

    def config(self, run_id: str) -> PublishedConfig:
        """Return the settings of a run, with empty names if they are damaged or absent."""
        try:
            return PublishedConfig.model_validate_json(self.store.get(run_path(run_id, CONFIG)))
        except (NotFoundError, ValidationError, RecursionError):
            return PublishedConfig()

    def progress(self, run_id: str) -> Progress | None:
        """Return the progress of a run. None if its driver has published none, or if it is damaged."""
        try:
            return Progress.model_validate_json(self.store.get(run_path(run_id, PROGRESS)))
        except (NotFoundError, ValidationError, RecursionError):
            return None

    def keys(self, run_id: str) -> frozenset[str]:
        """Return the keys of all artifacts that a run needs, and of artifacts that were made for the run later.

        Raise IntegrityError if the recorded keys are damaged, or the keys of the run are missing.
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
        """Remove the record of a run. The keys are removed last, so that an interrupted removal keeps the artifacts."""
        for info in list(self.store.list(run_path(run_id, RUN_FILES))):
            self.store.delete(info.path)
        for name in (STATE, PROGRESS, CONFIG, CANCEL, FURTHER, KEYS):
            self.store.delete(run_path(run_id, name))

    def _read(self, run_id: str, files: dict[str, ObjectInfo]) -> dict[str, Any] | None:
        if STATE not in files:
            return {} if KEYS in files else None
        try:
            raw = self.store.get(run_path(run_id, STATE))
        except NotFoundError:  # removed since it was listed
            return None
        try:
            state = PublishedState.model_validate_json(raw).model_dump(exclude_none=True)
        except (ValidationError, RecursionError):
            return {"state": RunState.DAMAGED}
        if state["state"] in UNFINISHED:
            age_s = self.store.now_s(run_path(run_id, STATE)) - files[STATE].modified_s
            return state | {"state": RunState.DIED} if age_s > DIED_AFTER_S else state
        return state


def _written_s(files: dict[str, ObjectInfo]) -> float:
    """Return the time at which the state of a run, or else its keys, was written, by the clock of the store."""
    written = files.get(STATE) or files.get(KEYS)
    return written.modified_s if written else 0.0


def encode_keys(keys: Iterable[str]) -> bytes:
    """Return keys as they are stored in a record."""
    return gzip.compress(json.dumps(sorted(keys)).encode(), mtime=0)
