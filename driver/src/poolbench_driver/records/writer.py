"""Write the record and the files of a run into the object store, for other machines that follow and compare it.

A thread writes the record, so that a slow or absent store never holds up the run, and a long step of the driver does
not make it look dead. What cannot be written is tried again at the next tick.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from poolbench.contracts.wire import RUN_FILES, run_path
from poolbench.errors import PoolbenchError
from poolbench.statuses import RunState
from poolbench.storage.base import ObjectStore
from poolbench_driver.config import RunConfig
from poolbench_driver.records.folder import now, write_state
from poolbench_driver.records.progress import FirstFigures
from poolbench_driver.records.record import CANCEL, CONFIG, KEYS, PROGRESS, STATE, encode_keys
from poolbench_driver.records.run import MANIFEST_FILE, Run, is_published, manifest_files


def write_files(store: ObjectStore, run: Run) -> None:
    """Write the files of a run's manifest into the store, and the manifest last."""
    manifest = run.file(MANIFEST_FILE).read_bytes()
    for name in manifest_files(manifest, run.file(MANIFEST_FILE)):
        if is_published(name):
            store.put(run_path(run.id, f"{RUN_FILES}{name}"), run.file(name).read_bytes())
    store.put(run_path(run.id, f"{RUN_FILES}{MANIFEST_FILE}"), manifest)


#: How many of the first figures a run prints.
NUM_NOTED = 2


@dataclass(frozen=True)
class Rhythm:
    """The intervals at which a driver writes its state and looks for a cancellation."""

    tick_s: float = 2.0  # between two looks for the cancel mark, and at least between two changes of the state
    heartbeat_s: float = 10.0  # the state is written this often even if nothing changed
    end_s: float = 30.0  # how long the end of a run waits for a store that does not answer


def first_figures_line(figures: Sequence[Mapping[str, Any]]) -> str:
    """Return one line with the best of some figures of one metric. `figures` comes from `FirstFigures.read`."""
    best = figures[:NUM_NOTED]
    values = (f"{figure['entrant']} {figure['value']:.3f} at layer {figure['layer']}" for figure in best)
    return f"first figures, {figures[0]['metric']}: {', '.join(values)}"


class RunWriter:
    """The record of one run in the object store, for as long as the `with` block lasts."""

    def __init__(
        self,
        store: ObjectStore,
        run: Run,
        note: Callable[[str], None],
        rhythm: Rhythm | None = None,
        follow_state: Callable[[RunState, Mapping[str, Any]], None] = lambda state, fields: None,
    ) -> None:
        """Write into `store`. At each change, `follow_state` receives the state and its fields."""
        self._follow_state = follow_state
        self._store, self._run, self._note, self._rhythm = store, run, note, rhythm or Rhythm()
        self._lock = threading.Lock()
        self._plan: dict[str, bytes] = {}  # files still to write, in this order and before the state
        self._state: dict[str, Any] = {}
        self._progress, self._written_progress = dict[str, Any](), dict[str, Any]()
        self._first_figures: FirstFigures | None = None
        self._has_noted_figures = False
        self._changed = self._cleared = self._failing = False
        self._written_s = -float("inf")
        self._cancelled, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="run-record", daemon=True)

    def __enter__(self) -> Self:
        self._tick()  # removes the mark of an earlier cancellation before anyone can set a new one
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(self._rhythm.end_s)
        if not self._thread.is_alive():
            self._tick()

    def write_plan(self, config: RunConfig, keys: Iterable[str]) -> None:
        """Publish the configuration, and the keys of the artifacts that the run needs."""
        settings = json.dumps(config.model_dump(mode="json"), indent=1).encode()
        with self._lock:
            self._plan = {KEYS: encode_keys(keys), CONFIG: settings}

    def write_state(self, state: RunState, **fields: Any) -> None:
        """Write the state into the run's folder now, and into the store soon."""
        self._follow_state(state, fields)
        content = write_state(self._run, state, **fields)
        with self._lock:
            self._state = content | {"folder": str(self._run.path.resolve())}
            self._changed = True

    def follow(self, first_figures: FirstFigures) -> None:
        """Publish the first figures of a plan with its progress, and write a note about the earliest figures."""
        self._first_figures = first_figures

    def write_progress(self, **fields: Any) -> None:
        """Pass on the progress of the run, which is soon written into the store unless only the time has changed."""
        with self._lock:
            self._progress = fields

    def write_files(self) -> None:
        """Write the tables of the run into the store, for other machines. A store that is away fails no run."""
        try:
            write_files(self._store, self._run)
        except PoolbenchError as error:
            self._note(f"the tables of this run could not be written into the object store: {error}")

    def cancelled(self) -> bool:
        """Return whether another command asked the driver to stop."""
        return self._cancelled.is_set()

    def _work(self) -> None:
        while not self._ended.wait(self._rhythm.tick_s):
            self._tick()

    def _tick(self) -> None:
        try:
            if not self._cleared:
                self._store.delete(run_path(self._run.id, CANCEL))
                self._cleared = True
            self._write()
            self._publish_progress()
            if not self._cancelled.is_set() and self._store.exists(run_path(self._run.id, CANCEL)):
                self._cancelled.set()
        except PoolbenchError as error:
            if not self._failing:
                self._note(f"the record of this run cannot be written, so other machines do not see it: {error}")
            self._failing = True
        else:
            self._failing = False

    def _publish_progress(self) -> None:
        with self._lock:
            progress = self._progress
        if not progress:
            return
        figures = self._first_figures.read() if self._first_figures else []
        if self._first_figures and not self._has_noted_figures:
            first = [figure for figure in figures if figure["metric"] == self._first_figures.metrics[0]]
            if first:
                self._note(first_figures_line(first))
                self._has_noted_figures = True
        progress = {**progress, "figures": figures}
        if {**progress, "elapsed_s": 0} != {**self._written_progress, "elapsed_s": 0}:
            self._store.put(run_path(self._run.id, PROGRESS), json.dumps(progress).encode())
            self._written_progress = progress

    def _write(self) -> None:
        """Write the state if it has changed. An unchanged state is written again after some time, because its age shows
        that the driver lives.
        """
        for name, data in list(self._plan.items()):
            self._store.put(run_path(self._run.id, name), data)
            with self._lock:
                if self._plan.get(name) is data:
                    del self._plan[name]
        due = time.monotonic() - self._written_s >= self._rhythm.heartbeat_s
        with self._lock:
            state, changed, self._changed = self._state, self._changed, False
        if not state or not (changed or due):
            return
        content = json.dumps(state | {"heartbeat_at": now()}, indent=1).encode()
        try:
            self._store.put(run_path(self._run.id, STATE), content)
        except PoolbenchError:
            self._changed = True
            raise
        self._written_s = time.monotonic()
