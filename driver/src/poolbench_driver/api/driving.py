"""Runs that Python starts: in the foreground (`run`), or in a background thread (`RunHandle`)."""

from __future__ import annotations

import atexit
import math
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from poolbench.contracts.tasks import Task
from poolbench.errors import ConfigError
from poolbench.statuses import RunState
from poolbench_driver import records
from poolbench_driver.api.loading import Run
from poolbench_driver.cluster.session import Session
from poolbench_driver.config import RunConfig
from poolbench_driver.contract.load import default_preset, load_run_config
from poolbench_driver.job import Job, Outcome
from poolbench_driver.loop.progress import Display, JsonDisplay, open_display
from poolbench_driver.queries.plain_values import of_plain_values
from poolbench_driver.records import UNFINISHED
from poolbench_driver.records.folder import create_run
from poolbench_driver.records.record import RunRecords
from poolbench_driver.series import prepare_all, run_all

#: How long the end of this process waits for each run to record that it was interrupted.
_STOP_S = 5.0
#: Seconds between two checks while waiting, so that an interruption is noticed.
_LOOK_S = 0.2


@of_plain_values
def run(
    config: RunConfig | Mapping[str, Any] | Path | str | None = None, *, output: Path | str = "runs",
    display: str | None = None, max_failures: int | None = None, track: Sequence[str] = (), **settings: Any,
) -> Outcome:  # fmt: skip
    """Measure a configuration on the cluster that the commands use, and wait until the run ends.

    The same call continues an interrupted run. Interrupting the call ends the run. To measure in the background, use
    `Cluster.run`.

    Args:
        config: A `RunConfig`, a dictionary of settings, or the path of a YAML file with settings.
        output: Folder of the runs.
        display: How progress is shown: rich, plain, json or none.
        max_failures: Number of failed tasks after which the run stops; None for no limit.
        track: Names of trackers that follow the run, such as mlflow.
        **settings: Settings by name, such as `preset` or `model`. They replace those of `config`.

    Returns:
        The state of the run, its failures, its tables by name, the answer of the suite, and its folder.

    Raises:
        ConfigError: A setting is wrong.
        PoolbenchError: The cluster cannot measure this configuration.
    """
    progress = open_display(display)
    jobs = prepare_all([configured(config, settings)], track=track)
    return next(run_all(jobs, Path(output), lambda: progress, max_failures))


def configured(config: RunConfig | Mapping[str, Any] | Path | str | None, settings: Mapping[str, Any]) -> RunConfig:
    """Make a configuration from `config` and `settings`, which replace its fields.

    A dictionary without a preset gets the default preset of the command `run`; a YAML file does not.

    Raises:
        ConfigError: A field is wrong, or settings are given with a complete `RunConfig`.
    """
    if isinstance(config, RunConfig):
        if settings:
            raise ConfigError(f"a whole configuration takes no further settings, got {', '.join(settings)}")
        return config
    if config is not None and not isinstance(config, Mapping):
        return load_run_config(Path(config), dict(settings))
    overrides = {**(config or {}), **settings}
    return load_run_config(None, {"preset": default_preset(overrides), **overrides})


#: Runs that threads of this process drive, by folder.
_live: dict[Path, RunHandle] = {}
_starting = threading.Lock()


def start(
    config: RunConfig, session: Session, output: Path, display: str | None = None, max_failures: int | None = None,
    track: Sequence[str] = (),
) -> RunHandle:  # fmt: skip
    """Plan a run and start a thread that drives it. If this process already drives the run, return its handle.

    Raises:
        PoolbenchError: The cluster cannot measure this configuration.
    """
    progress = open_display(display)
    with _starting:
        (job,) = prepare_all([config], session, track)
        folder = create_run(output, job.config)
        handle = _live.get(folder.path.resolve())
        if handle is None or not handle.running:
            handle = _live[folder.path.resolve()] = RunHandle(job, folder, progress, max_failures)
        return handle


class _Tee:
    """A display that passes each call on to several displays."""

    def __init__(self, *displays: Display) -> None:
        self._displays = displays

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> None:
            for display in self._displays:
                getattr(display, name)(*args, **kwargs)

        return call


class _Events(JsonDisplay):
    """A display that collects the events of a run in a list."""

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
    """A run that a background thread of this process drives.

    Interrupting a cell that waits does not stop the run. `cancel` stops it. If this process ends first, the state of
    the run is `interrupted` or `died`. Tasks that services are working on are still finished, and the same call of
    `Cluster.run` continues the run.

    Attributes:
        run: The run, which can be read while it is measured.
        outcome: The state, failures and tables of the run after its end; None before it.
    """

    def __init__(self, job: Job, folder: records.Run, display: Display, max_failures: int | None) -> None:
        self.run = Run(folder.path)
        self.outcome: Outcome | None = None
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
        """Return whether the thread still drives the run."""
        return not self._ended.is_set()

    @property
    def state(self) -> RunState:
        """Return the state of the run, such as `starting`, `running` or `done`."""
        state = self.run.state
        if self.running and state not in UNFINISHED:  # that of an earlier attempt
            return RunState.STARTING
        return state or RunState.STOPPED

    def wait(self, timeout_s: float | None = None) -> Run:
        """Wait until the run ends. Interrupting the call does not stop the run.

        Args:
            timeout_s: Longest time to wait in seconds; None for no limit.

        Returns:
            The finished run. Failed tasks raise no error; `outcome.failures` lists them.

        Raises:
            TimeoutError: The run has not ended within `timeout_s`.
            PoolbenchError: An error stopped the run.
        """
        ends_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self._ended.wait(max(0.0, min(_LOOK_S, ends_s - time.monotonic()))):
            if timeout_s is not None and time.monotonic() >= ends_s:
                raise TimeoutError(f"run {self.id} has not ended after {timeout_s:g} s; it goes on")
        if self._error is not None:
            raise self._error
        return self.run

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events of the run from its start, and wait for new ones until it ends.

        Yields:
            One dictionary per event, as `poolbench-driver run --display json` prints them.
        """
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
        """Ask the run to stop, as the command `cancel` does. Finished tasks are kept, and all others are dropped."""
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
