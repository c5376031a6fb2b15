"""A handler's view of its task: inputs, outputs and progress, and the context that it runs in."""

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from poolbench.cancellation import Work, working
from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import cancel_path, progress_path
from poolbench.contracts.work import Shape
from poolbench.errors import CancelledTaskError, InputError, StoreError
from poolbench.steps import work_of
from poolbench.storage.artifacts import Artifacts, Manifest

PROGRESS_INTERVAL_S = 2.0
_COMMITS_AT_ONCE = 8
_LOOK_S = 2.0
_LOG = logging.getLogger("poolbench.task")
_OWN = Path("/proc/self")
_CLEAR_REFS = _OWN / "clear_refs"


class Meter:
    """A stopwatch that measures wall time, device time and peak memory per lap."""

    def __init__(self) -> None:
        self._device_s: float | None = None
        self._peak_bytes: int | None = None
        self._start()

    def report(self, *, device_s: float | None = None, peak_bytes: int | None = None) -> None:
        """Add device seconds to the current lap, and raise the lap's peak of device memory to at least `peak_bytes`."""
        if device_s is not None:
            self._device_s = (self._device_s or 0.0) + device_s
        if peak_bytes is not None:
            self._peak_bytes = max(self._peak_bytes or 0, peak_bytes)

    def lap(self) -> dict[str, Any]:
        """End the lap and return `wall_s`, `device_s` and `peak_bytes`.

        If no device reported, `device_s` is the CPU time of this process, and `peak_bytes` is the peak resident memory
        of this process and of the processes that it has started, such as an engine.
        """
        cpu_s = time.process_time() - self._cpu_s
        measured = {
            "wall_s": round(time.perf_counter() - self._wall_s, 4),
            "device_s": round(cpu_s if self._device_s is None else self._device_s, 4),
            "peak_bytes": peak_resident_bytes() if self._peak_bytes is None else self._peak_bytes,
        }
        self._start()
        return measured

    def _start(self) -> None:
        self._wall_s = time.perf_counter()
        self._cpu_s = time.process_time()
        self._device_s = None
        self._peak_bytes = None
        with contextlib.suppress(OSError):  # a kernel without it reports the peak of the process's life
            _CLEAR_REFS.write_text("5")


def peak_resident_bytes(process: Path = _OWN) -> int:
    """Return the peak resident memory of a process since the last lap began, plus its children's lifetime peaks."""
    num_bytes = sum(peak_resident_bytes(Path("/proc", child)) for child in _children(process))
    with contextlib.suppress(OSError):
        for line in (process / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                num_bytes += int(line.split()[1]) * 1024
    return num_bytes


def _children(process: Path) -> Iterator[str]:
    for file in process.glob("task/*/children"):
        with contextlib.suppress(OSError):  # of a thread that has ended meanwhile
            yield from file.read_text().split()


class TaskIO:
    """Reads the inputs of a task and commits its outputs.

    Each output is committed separately, so that a repeated task makes only the missing outputs.
    """

    def __init__(self, task: Task, artifacts: Artifacts, producer: Mapping[str, Any] | None = None) -> None:
        self.task = task
        self._artifacts = artifacts
        self._producer = dict(producer or {})
        self._meter = Meter()
        self._reported_s = 0.0
        self.missing: set[str] = {role for role, key in task.outputs.items() if not artifacts.exists(key)}
        self._num_outputs = len(self.missing)
        self._read: dict[str, Shape] = {}

    def table(self, role: str) -> pa.Table:
        """Return the table of an input. Raise InputError without such an input, NotFoundError if uncommitted."""
        table = self._artifacts.read_table(self._input(role))
        self._read[role] = Shape(table.num_rows, _width(table.schema))
        return table

    def shards(self, role: str) -> Iterator[pa.Table]:
        """Yield the table of an input shard by shard, because the table need not fit into memory."""
        rows = 0
        for shard in self._artifacts.read_shards(self._input(role)):
            rows += shard.num_rows
            self._read[role] = Shape(rows, _width(shard.schema))
            yield shard

    def file(self, role: str, name: str) -> bytes:
        """Return a file of an input that is not a table."""
        return self._artifacts.read(self._input(role), name)

    def meta(self, role: str) -> dict[str, Any]:
        """Return the metadata that the producer of an input wrote."""
        return dict(self.manifest(role).meta)

    def manifest(self, role: str) -> Manifest:
        """Return the manifest of an input: files, rows, meta, producer."""
        manifest = self._artifacts.manifest(self._input(role))
        self._read.setdefault(role, Shape(manifest.num_rows or 0, base=str(manifest.meta.get("base", ""))))
        return manifest

    def write_table(self, role: str, table: pa.Table, meta: Mapping[str, Any] | None = None) -> None:
        """Commit an output table, with the measurements since the last commit."""
        self._artifacts.write_table(self._output(role), table, meta=meta, producer=self._measured())
        self.missing.discard(role)

    def write_tables(self, tables: Mapping[str, pa.Table], meta: Mapping[str, Any] | None = None) -> None:
        """Commit output tables by role. Several commits run at once, because a commit mostly waits for the store.

        All commits have ended when this method returns. If several commits fail, the first error is raised.
        """
        with ThreadPoolExecutor(_COMMITS_AT_ONCE, thread_name_prefix="commit") as pool:
            commits = {
                role: pool.submit(
                    copy_context().run,
                    partial(
                        self._artifacts.write_table, self._output(role), table, meta=meta, producer=self._measured()
                    ),
                )
                for role, table in tables.items()
            }
        for role, commit in commits.items():
            commit.result()
            self.missing.discard(role)

    def write_files(self, role: str, files: Mapping[str, bytes], meta: Mapping[str, Any] | None = None) -> None:
        """Commit an output that is a set of files, such as model weights."""
        self._artifacts.write(self._output(role), files, meta=meta, producer=self._measured())
        self.missing.discard(role)

    @contextmanager
    def writing_shards(self, role: str, meta: Mapping[str, Any] | None = None) -> Iterator[Callable[[pa.Table], None]]:
        """Write an output table shard by shard, and commit the table at the end.

        If an error occurs, remove all shards.
        """
        writer = self._artifacts.writer(self._output(role))
        try:
            yield writer.add_shard
        except BaseException:
            writer.discard()
            raise
        writer.commit(meta=meta, producer=self._measured())
        self.missing.discard(role)

    def report(self, *, device_s: float | None = None, peak_bytes: int | None = None) -> None:
        """Add the measurements of a device. Without a report, CPU seconds and resident memory of the process count."""
        self._meter.report(device_s=device_s, peak_bytes=peak_bytes)

    def progress(self, done: int, total: int, note: str = "") -> None:
        """Report the progress of the task, at most once every few seconds. If the store is away, the work continues."""
        now = time.monotonic()
        if now - self._reported_s < PROGRESS_INTERVAL_S:
            return
        self._reported_s = now
        _LOG.info("%s %s: %d of %d %s", self.task.kind, self.task.task_id, done, total, note)
        body = {"task_id": self.task.task_id, "done": done, "total": total, "note": note, "at": time.time()}
        try:
            self._artifacts.store.put(progress_path(self.task.task_id), json.dumps(body).encode())
        except StoreError as error:
            _LOG.warning("the progress of task %s cannot be written: %s", self.task.task_id, error)

    def check_cancelled(self) -> None:
        """Raise CancelledTaskError if the run that sent the task was cancelled. Long handlers call this regularly."""
        if self._artifacts.store.exists(cancel_path(self.task.task_id)):
            raise CancelledTaskError(f"{self.task.kind} {self.task.task_id} was cancelled by its sender")

    def _measured(self) -> dict[str, Any]:
        """Return the facts for the manifest, such as the amount of work, from which later runs are estimated."""
        measured = {**self._producer, **self._meter.lap()}
        work = work_of(self.task, self._read)
        if work is not None and self._num_outputs:
            share = self._num_outputs / len(self.task.outputs)  # an earlier attempt may have committed the others
            measured["work"] = work._replace(amount=work.amount * share)._asdict()
            measured["num_outputs"] = self._num_outputs
        return measured

    def _input(self, role: str) -> str:
        return _key(self.task, "input", self.task.inputs, role)

    def _output(self, role: str) -> str:
        return _key(self.task, "output", self.task.outputs, role)


def _width(schema: pa.Schema) -> int:
    """Return the width of a table's vectors, or 0 if it has none."""
    index = schema.get_field_index("vector")
    return int(getattr(schema.field(index).type, "list_size", 0)) if index >= 0 else 0


def _key(task: Task, side: str, keys: Mapping[str, str], role: str) -> str:
    if role not in keys:
        raise InputError(f"task {task.task_id} ({task.kind}) has no {side} {role!r}; it has {', '.join(sorted(keys))}")
    return keys[role]


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
        RuntimeError: Instead of anything that is not an `Exception`: a panic of a Rust library or a call of `sys.exit`
            would end the thread that consumes the queue.
    """
    try:
        with working(_TaskWork(io)):
            yield
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
