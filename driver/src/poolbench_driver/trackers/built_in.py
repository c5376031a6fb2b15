"""MLflow, Weights & Biases and trackio. Each package is imported when a run names it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from poolbench.contracts import Row
from poolbench.statuses import RunState
from poolbench_driver.records import Run
from poolbench_driver.trackers.tracker import TRACKERS

#: Project or experiment of runs, where the tool's own variable names no other.
PROJECT = "poolbench"
_RUN_TAG, _MAX_CHARACTERS = "poolbench.run", 6000  # the latter of a parameter, in MLflow


@TRACKERS.register("mlflow", package="mlflow-skinny")
class MLflow:
    """A run of the MLflow experiment `MLFLOW_EXPERIMENT_NAME`, on the server at `MLFLOW_TRACKING_URI`."""

    def started(self, run: Run, settings: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient

        self._client, self._table = MlflowClient(), run.file("results.parquet")
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        place = experiment.experiment_id if experiment else self._client.create_experiment(name)
        if earlier := self._client.search_runs([place], f"tags.`{_RUN_TAG}` = '{run.id}'", max_results=1):
            self._id = earlier[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        self._id = self._client.create_run(place, run_name=run.id, tags={_RUN_TAG: run.id}).info.run_id
        for name, value in flat(settings):
            self._client.log_param(self._id, _named(name), str(value)[:_MAX_CHARACTERS])

    def progress(self, done: int, failed: int, total: int) -> None:
        self._log({"tasks_done": done, "tasks_failed": failed, "tasks": total}, done + failed)

    def figures(self, rows: Sequence[Row]) -> None:
        self._log(named_figures(rows), 0)

    def finished(self, state: RunState, report: Path | None) -> None:
        killed = state in (RunState.CANCELLED, RunState.INTERRUPTED)
        status = "FINISHED" if state == RunState.DONE else "KILLED" if killed else "FAILED"
        self._client.set_terminated(self._id, status)
        for file in (report, self._table) if report else ():
            self._client.log_artifact(self._id, str(file))

    def _log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self._id, _named(name), value, step=step)


@TRACKERS.register("wandb", package="wandb")
class WandB:
    """A run of the W&B project `WANDB_PROJECT`. With `WANDB_MODE=offline`, W&B writes the run into a folder."""

    def started(self, run: Run, settings: Mapping[str, Any]) -> None:
        with redirect_stdout(sys.stderr):  # both tools greet; standard output is for data
            self._run, self._name = self._open(run.id, dict(settings)), run.id

    def _open(self, name: str, settings: dict[str, Any]) -> Any:
        import wandb

        project = os.environ.get("WANDB_PROJECT", PROJECT)
        quiet = wandb.Settings(console="off", silent=True)  # what the driver prints is not W&B's to take
        return wandb.init(
            project=project, id=name, name=name, config=settings, resume="allow", reinit="create_new", settings=quiet
        )

    def progress(self, done: int, failed: int, total: int) -> None:
        self._run.log({"tasks_done": done, "tasks_failed": failed, "tasks": total})

    def figures(self, rows: Sequence[Row]) -> None:
        self._run.log(named_figures(rows))

    def finished(self, state: RunState, report: Path | None) -> None:
        with redirect_stdout(sys.stderr):
            if report:
                self._run.log_artifact(str(report), name=f"report-{self._name}", type="report")
            self._close(int(state != RunState.DONE))

    def _close(self, exit_code: int) -> None:
        self._run.finish(exit_code=exit_code)


@TRACKERS.register("trackio", package="trackio")
class Trackio(WandB):
    """A run of the project `TRACKIO_PROJECT`, in `TRACKIO_DIR` or at `TRACKIO_SPACE_ID`."""

    def _open(self, name: str, settings: dict[str, Any]) -> Any:
        import trackio

        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        unmeasured: dict[str, Any] = {"auto_log_gpu": False, "auto_log_cpu": False}
        return trackio.init(project, name, config=settings, resume="allow", embed=False, **unmeasured)

    def _close(self, exit_code: int) -> None:
        self._run.finish()


def named_figures(rows: Sequence[Row]) -> dict[str, float]:
    """Return figures by name, such as `d1.auroc/A1_mean` and `d1.auroc.rank/A1_mean`. Null figures are left out."""
    figures = {}
    for row in rows:
        figures[f"{row['metric']}/{row['entrant']}"] = row["value"]
        figures[f"{row['metric']}.rank/{row['entrant']}"] = row["rank"]
    return {name: value for name, value in figures.items() if value is not None}


def flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings with their path, such as `budget.max_tokens`. Lists are written as JSON."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value if isinstance(value, str) else json.dumps(value)


def _named(name: str) -> str:
    """Return a name in which underscores replace the characters that MLflow refuses."""
    return re.sub(r"[^\w./ -]", "_", name)
