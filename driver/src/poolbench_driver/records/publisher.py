"""Write the record of a run while its driver works, and look for the mark that cancels it.

A thread does both, so that a slow or absent store never holds up the run, and a long step of the driver does not make
it look dead. What cannot be written is tried again at the next tick.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from poolbench.contracts.wire import run_path
from poolbench.errors import PoolbenchError
from poolbench.statuses import RunState
from poolbench.storage.base import ObjectStore
from poolbench_driver.config import RunConfig
from poolbench_driver.records.files import publish_files
from poolbench_driver.records.folder import RunFolder, now
from poolbench_driver.records.record import CANCEL, CONFIG, KEYS, STATE, encode_keys


@dataclass(frozen=True)
class Rhythm:
    """How often a driver writes and looks."""

    tick_s: float = 2.0  # between two looks for the cancel mark, and at least between two changes of the state
    heartbeat_s: float = 10.0  # the state is written this often even if nothing changed
    end_s: float = 30.0  # how long the end of a run waits for a store that does not answer


class Publisher:
    """The record of one run in the object store, for as long as the `with` block lasts."""

    def __init__(
        self, store: ObjectStore, folder: RunFolder, note: Callable[[str], None], rhythm: Rhythm | None = None
    ) -> None:
        self._store, self._folder, self._note, self._rhythm = store, folder, note, rhythm or Rhythm()
        self._lock = threading.Lock()
        self._plan: dict[str, bytes] = {}  # files still to write, in this order and before the state
        self._state: dict[str, Any] = {}
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

    def publish_plan(self, config: RunConfig, keys: Iterable[str]) -> None:
        """Publish the configuration, and the keys of the artifacts that the run needs."""
        settings = json.dumps(config.model_dump(mode="json"), indent=1).encode()
        with self._lock:
            self._plan = {KEYS: encode_keys(keys), CONFIG: settings}

    def write_state(self, state: RunState, **fields: Any) -> None:
        """Write the state into the run's folder now, and into the store soon."""
        content = self._folder.write_state(state, **fields)
        with self._lock:
            self._state = content | {"folder": str(self._folder.path.resolve())}
            self._changed = True

    def publish_files(self) -> None:
        """Write the tables of the run into the store, for other machines. A store that is away fails no run."""
        try:
            publish_files(self._store, self._folder)
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
                self._store.delete(run_path(self._folder.id, CANCEL))
                self._cleared = True
            self._write()
            if not self._cancelled.is_set() and self._store.exists(run_path(self._folder.id, CANCEL)):
                self._cancelled.set()
        except PoolbenchError as error:
            if not self._failing:
                self._note(f"the record of this run cannot be written, so other machines do not see it: {error}")
            self._failing = True
        else:
            self._failing = False

    def _write(self) -> None:
        """Write what is new; write the state again after some time, because its age shows that the driver lives."""
        for name, data in list(self._plan.items()):
            self._store.put(run_path(self._folder.id, name), data)
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
            self._store.put(run_path(self._folder.id, STATE), content)
        except PoolbenchError:
            self._changed = True
            raise
        self._written_s = time.monotonic()
