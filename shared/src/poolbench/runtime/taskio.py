"""A handler's view of its task: inputs to read, outputs still to commit, progress to report."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import cancel_path, progress_path
from poolbench.errors import CancelledTaskError, InputError
from poolbench.runtime.meter import Meter
from poolbench.storage.artifacts import Artifacts, Manifest

PROGRESS_INTERVAL_S = 2.0
_LOG = logging.getLogger("poolbench.task")


class TaskIO:
    """Reads a task's inputs and commits its outputs, each on its own, so that a redone task does the rest."""

    def __init__(self, task: Task, artifacts: Artifacts, producer: Mapping[str, Any] | None = None) -> None:
        self.task = task
        self._artifacts = artifacts
        self._producer = dict(producer or {})
        self._meter = Meter()
        self._reported_s = 0.0
        self.missing: set[str] = {role for role, key in task.outputs.items() if not artifacts.exists(key)}

    def table(self, role: str) -> pa.Table:
        """The table of an input.

        Raises:
            InputError: the task has no such input.
            NotFoundError: the input was never committed.
        """
        return self._artifacts.read_table(self._input(role))

    def shards(self, role: str) -> Iterator[pa.Table]:
        """The table of an input shard by shard, where it need not fit into memory."""
        return self._artifacts.read_shards(self._input(role))

    def file(self, role: str, name: str) -> bytes:
        """One file of an input that is not a table."""
        return self._artifacts.read(self._input(role), name)

    def meta(self, role: str) -> dict[str, Any]:
        """What the producer of an input noted for its readers."""
        return dict(self.manifest(role).meta)

    def manifest(self, role: str) -> Manifest:
        """The manifest of an input: files, rows, meta, producer."""
        return self._artifacts.manifest(self._input(role))

    def write_table(self, role: str, table: pa.Table, meta: Mapping[str, Any] | None = None) -> None:
        """Commits an output table, with what was measured since the last commit."""
        self._artifacts.write_table(self._output(role), table, meta=meta, producer=self._measured())
        self.missing.discard(role)

    def write_files(self, role: str, files: Mapping[str, bytes], meta: Mapping[str, Any] | None = None) -> None:
        """Commits an output that is a set of files, such as model weights."""
        self._artifacts.write(self._output(role), files, meta=meta, producer=self._measured())
        self.missing.discard(role)

    @contextmanager
    def writing_shards(self, role: str, meta: Mapping[str, Any] | None = None) -> Iterator[Callable[[pa.Table], None]]:
        """Takes an output table shard by shard, and commits it at the end; an error removes what was written."""
        writer = self._artifacts.writer(self._output(role))
        try:
            yield writer.add_shard
        except BaseException:
            writer.discard()
            raise
        writer.commit(meta=meta, producer=self._measured())
        self.missing.discard(role)

    def report(self, *, device_s: float | None = None, peak_bytes: int | None = None) -> None:
        """Adds what a device measured; without it, CPU seconds and resident memory of the process count."""
        self._meter.report(device_s=device_s, peak_bytes=peak_bytes)

    def progress(self, done: int, total: int, note: str = "") -> None:
        """Report how far the task is. Writes at most once every few seconds."""
        now = time.monotonic()
        if now - self._reported_s < PROGRESS_INTERVAL_S:
            return
        self._reported_s = now
        note = "" if self.task.restricted else note
        _LOG.info("%s %s: %d of %d %s", self.task.kind, self.task.task_id, done, total, note)
        body = {"task_id": self.task.task_id, "done": done, "total": total, "note": note, "at": time.time()}
        self._artifacts.store.put(progress_path(self.task.task_id), json.dumps(body).encode())

    def check_cancelled(self) -> None:
        """For long handlers to call now and then.

        Raises:
            CancelledTaskError: the run that sent the task was cancelled.
        """
        if self._artifacts.store.exists(cancel_path(self.task.task_id)):
            raise CancelledTaskError(f"{self.task.kind} {self.task.task_id} was cancelled by who sent it")

    def _measured(self) -> dict[str, Any]:
        return {**self._producer, **self._meter.lap()}

    def _input(self, role: str) -> str:
        return _key(self.task, "input", self.task.inputs, role)

    def _output(self, role: str) -> str:
        return _key(self.task, "output", self.task.outputs, role)


def _key(task: Task, side: str, keys: Mapping[str, str], role: str) -> str:
    if role not in keys:
        raise InputError(f"task {task.task_id} ({task.kind}) has no {side} {role!r}; it has {', '.join(sorted(keys))}")
    return keys[role]
