"""Runs that Python starts: one that the caller waits for, and those that threads of this process drive."""

from __future__ import annotations

import atexit
import math
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from poolbench.contracts.tasks import Task
from poolbench.errors import ConfigError
from poolbench.statuses import RunState
from poolbench_driver.api.loading import Run
from poolbench_driver.cluster.session import Session, open_session
from poolbench_driver.config import RunConfig
from poolbench_driver.contract import PRESET
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.doctor.finding import check_session
from poolbench_driver.job import Job, Outcome
from poolbench_driver.loop.progress import Display, JsonDisplay, open_display
from poolbench_driver.records import RunFolder, RunRecords
from poolbench_driver.records.folder import UNFINISHED
from poolbench_driver.series import prepare_all
from poolbench_driver.trackers import TRACKERS

#: How long the end of this process waits for each run to record that it was interrupted.
_STOP_S = 5.0
#: Time between two looks of what waits: an interruption that another thread gets is noticed then.
_LOOK_S = 0.2


def run(
    config: RunConfig | Mapping[str, Any] | Path | str, *, output: Path | str = "runs", display: str = "none",
    max_failures: int | None = None, track: Sequence[str] = (),
) -> Outcome:  # fmt: skip
    """Measure a configuration on the cluster, as the command `run` does; the same call continues an interrupted run.

    Args:
        config: A configuration, the settings of one (such as `{"preset": "demo", "concepts": ["contrast"]}`), or a
            YAML file of settings.
        output: Folder that runs lie in.
        display: How progress is shown: rich, plain, json or none.
        max_failures: Failed tasks after which the run stops; None for no limit.
        track: Trackers that follow the run: mlflow, wandb, trackio, or those of other packages.

    Returns:
        The outcome: state, failures, tables by name, the suite's answer, and the run's folder.

    Raises:
        PoolbenchError: The configuration cannot be measured, or the cluster is not there.
    """
    if not isinstance(config, RunConfig):
        settings = dict(config) if isinstance(config, Mapping) else {}
        config = load_run_config(None if isinstance(config, Mapping) else Path(config), settings)
    trackers = tuple(map(TRACKERS.get, track))
    (job,) = prepare_all([config], open_session())
    job = replace(job, trackers=trackers)
    return job.run(RunFolder.create(Path(output), job.config), open_display(display), max_failures)


def configured(config: RunConfig | Mapping[str, Any] | Path | str | None, settings: Mapping[str, Any]) -> RunConfig:
    """Return a configuration with other settings; one that names no preset begins with that of the command.

    Raise ConfigError with each wrong field.
    """
    if isinstance(config, RunConfig):
        if settings:
            raise ConfigError(f"a whole configuration takes no further settings, got {', '.join(settings)}")
        return config
    if config is not None and not isinstance(config, Mapping):
        return load_run_config(Path(config), dict(settings))
    return load_run_config(None, {"preset": PRESET, **(config or {}), **settings})


def new_folder(job: Job, output: Path) -> RunFolder:
    """Return the folder of a run that is about to start; raise a PoolbenchError if the cluster is unfit."""
    for note in check_session(job.session):
        print(note, file=sys.stderr, flush=True)
    return RunFolder.create(output, job.config)


#: Runs by folder that threads of this process drive.
_live: dict[Path, RunHandle] = {}
_starting = threading.Lock()


def start(
    config: RunConfig, session: Session, output: Path, display: str = "plain", max_failures: int | None = None,
    track: Sequence[str] = (),
) -> RunHandle:  # fmt: skip
    """Plan a run, and start a thread that drives it; a run that this process drives already is returned as it is.

    Raise PoolbenchError where the command would.
    """
    SUITES.get(config.suite).check(config)
    progress, trackers = open_display(display), tuple(map(TRACKERS.get, track))
    with _starting:
        (job,) = prepare_all([config], session)
        folder = new_folder(job, output)
        handle = _live.get(folder.path.resolve())
        if handle is None or not handle.running:
            handle = _live[folder.path.resolve()] = RunHandle(
                replace(job, trackers=trackers), folder, progress, max_failures
            )
        return handle


class _Tee:
    """Pass the calls of a display on to several."""

    def __init__(self, *displays: Display) -> None:
        self._displays = displays

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> None:
            for display in self._displays:
                getattr(display, name)(*args, **kwargs)

        return call


class _Events(JsonDisplay):
    """Keep the events of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[dict[str, Any]] = []
        self.changed = threading.Condition()
        self.is_stopped = False

    def tick(self, in_flight: Mapping[str, Task]) -> None:
        super().tick(in_flight)
        if self.is_stopped:  # the loop ends as by Ctrl-C, which only the main thread gets
            raise KeyboardInterrupt

    def _emit(self, event: str, **fields: object) -> None:
        with self.changed:
            self.entries.append({"event": event, "elapsed_s": round(self.elapsed_s, 2), **fields})
            self.changed.notify_all()


class RunHandle:
    """A run that a thread of this process drives.

    An interrupted cell stops waiting, and the run goes on. It ends by itself, by `cancel`, or with this process: then
    it is `interrupted` or `died`, its tasks that are in work finish, and the same call continues it.
    """

    def __init__(self, job: Job, folder: RunFolder, display: Display, max_failures: int | None) -> None:
        self.run = Run(folder.path)
        self.outcome: Outcome | None = None
        """What the run came to; None before its end."""
        self._session, self._events, self._ended = job.session, _Events(), threading.Event()
        self._error: BaseException | None = None
        both = cast(Display, _Tee(self._events, display))

        def drive() -> None:
            try:
                self.outcome = job.run(folder, both, max_failures)
            except BaseException as error:  # `wait` raises it
                self._error = error
            finally:
                self._ended.set()
                with self._events.changed:
                    self._events.changed.notify_all()

        threading.Thread(target=drive, name=f"run {folder.id}", daemon=True).start()

    @property
    def id(self) -> str:
        """Return the id of the run."""
        return self.run.id

    @property
    def running(self) -> bool:
        """Return whether the thread works on the run."""
        return not self._ended.is_set()

    @property
    def state(self) -> RunState:
        """Return the state of the run."""
        state = self.run.state
        if self.running and state not in UNFINISHED:  # that of an earlier attempt
            return RunState.STARTING
        return state or RunState.STOPPED

    def wait(self, timeout_s: float | None = None) -> Run:
        """Wait until the run ends, and return it; an interruption stops waiting, not the run.

        Args:
            timeout_s: Longest time to wait; None for no limit.

        Raises:
            TimeoutError: The run has not ended in this time.
            PoolbenchError: What stopped the run. Failed tasks do not: see `outcome.failures`.
        """
        ends_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self._ended.wait(max(0.0, min(_LOOK_S, ends_s - time.monotonic()))):
            if timeout_s is not None and time.monotonic() >= ends_s:
                raise TimeoutError(f"run {self.id} has not ended after {timeout_s:g} s; it goes on")
        if self._error is not None:
            raise self._error
        return self.run

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events of the run from its start to its end, as `run --display json` prints them."""
        place = 0
        while True:
            with self._events.changed:
                while place == len(self._events.entries) and self.running:
                    self._events.changed.wait(_LOOK_S)
                new = self._events.entries[place:]
            if not new:
                return
            yield from new
            place += len(new)

    def cancel(self) -> None:
        """Ask the run to stop, as the command `cancel` does; what is in work is dropped, what is done is kept."""
        while self.running and self.state == RunState.STARTING:  # it would drop the mark of an earlier cancellation
            time.sleep(0.05)
        if self.running:
            RunRecords(self._session.artifacts.store).cancel(self.id)

    def __repr__(self) -> str:
        state = self.run.read_state()
        done = (
            f", {state['tasks_done']} of {state['tasks']} tasks done" if "tasks_done" in state and self.running else ""
        )
        return f"RunHandle({self.id!r}, {self.state}{done})"


@atexit.register
def _stop_all() -> None:
    for handle in list(_live.values()):
        if handle.running:
            print(f"run {handle.id} stops with this process; the same call continues it", file=sys.stderr, flush=True)
            handle._events.is_stopped = True
            handle._ended.wait(_STOP_S)
