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
from poolbench_driver.trackers.tracker import TRACKERS, RunFacts

#: Project or experiment of runs, where the tool's own variable names no other.
PROJECT = "poolbench"
#: What MLflow's server takes: parameters in one request, and characters of a value.
_MAX_PARAMS, _MAX_CHARACTERS = 100, 6000
_RUN_TAG = "poolbench.run"


@TRACKERS.register("mlflow", package="mlflow-skinny")
class MLflow:
    """A run of the experiment `MLFLOW_EXPERIMENT_NAME`, at `MLFLOW_TRACKING_URI`."""

    def started(self, run: RunFacts, settings: Mapping[str, Any]) -> None:
        """Open the run, or the one that an earlier call of the same command opened."""
        from mlflow import MlflowClient

        self._client, self._folder = MlflowClient(), run.folder
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        place = experiment.experiment_id if experiment else self._client.create_experiment(name)
        if earlier := self._client.search_runs([place], f"tags.`{_RUN_TAG}` = '{run.id}'", max_results=1):
            self._id = earlier[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        self._id = self._client.create_run(place, run_name=run.id, tags={_RUN_TAG: run.id}).info.run_id
        facts = {"suite": run.suite, "model": run.model, "model_revision": run.model_revision}
        params = {_named(name): str(value)[:_MAX_CHARACTERS] for name, value in flat({**settings, **facts})}
        names = list(params)
        for first in range(0, len(names), _MAX_PARAMS):
            self._log(params={name: params[name] for name in names[first : first + _MAX_PARAMS]})

    def progress(self, done: int, failed: int, total: int) -> None:
        """Log the numbers of tasks, at the number that have ended."""
        self._log({"tasks_done": done, "tasks_failed": failed, "tasks": total}, step=done + failed)

    def figures(self, rows: Sequence[Row]) -> None:
        """Log the figures."""
        values = list(named_figures(rows).items())
        for first in range(0, len(values), _MAX_PARAMS):
            self._log(dict(values[first : first + _MAX_PARAMS]))

    def finished(self, state: RunState, report: Path | None) -> None:
        """Upload report and tables, and end the run."""
        self._client.set_tag(self._id, "poolbench.state", str(state))
        killed = state in (RunState.CANCELLED, RunState.INTERRUPTED)
        status = "FINISHED" if state == RunState.DONE else "KILLED" if killed else "FAILED"
        self._client.set_terminated(self._id, status)
        for file in (report, self._folder / "results.parquet") if report else ():
            self._client.log_artifact(self._id, str(file))

    def _log(
        self, values: Mapping[str, float] | None = None, step: int = 0, params: Mapping[str, str] | None = None
    ) -> None:
        import time

        from mlflow.entities import Metric, Param

        now_ms = int(1000 * time.time())
        metrics = [Metric(_named(name), value, now_ms, step) for name, value in (values or {}).items()]
        self._client.log_batch(self._id, metrics, [Param(*pair) for pair in (params or {}).items()])


@TRACKERS.register("wandb", package="wandb")
class WandB:
    """A run of the project `WANDB_PROJECT`; `WANDB_MODE=offline` writes it into a folder."""

    def started(self, run: RunFacts, settings: Mapping[str, Any]) -> None:
        """Open the run, or continue it."""
        facts = {"suite": run.suite, "model": run.model, "model_revision": run.model_revision}
        self._run, self._name = self._open(run.id, {**settings, **facts}), run.id

    def _open(self, name: str, settings: dict[str, Any]) -> Any:
        import wandb

        project = os.environ.get("WANDB_PROJECT", PROJECT)
        quiet = wandb.Settings(console="off", silent=True)  # what the driver prints is not W&B's to take
        return wandb.init(
            project=project, id=name, name=name, config=settings, resume="allow", reinit="create_new", settings=quiet
        )

    def progress(self, done: int, failed: int, total: int) -> None:
        """Log the numbers of tasks."""
        self._run.log({"tasks_done": done, "tasks_failed": failed, "tasks": total})

    def figures(self, rows: Sequence[Row]) -> None:
        """Log the figures."""
        self._run.log(named_figures(rows))

    def finished(self, state: RunState, report: Path | None) -> None:
        """Upload the report, and end the run."""
        if report:
            self._run.log_artifact(str(report), name=f"report-{self._name}", type="report")
        self._run.finish(exit_code=int(state != RunState.DONE))


@TRACKERS.register("trackio", package="trackio")
class Trackio(WandB):
    """A run of the project `TRACKIO_PROJECT`, in `TRACKIO_DIR` or at `TRACKIO_SPACE_ID`."""

    def _open(self, name: str, settings: dict[str, Any]) -> Any:
        import trackio

        with redirect_stdout(sys.stderr):  # it greets; standard output is for data
            return trackio.init(
                os.environ.get("TRACKIO_PROJECT", PROJECT), name, config=settings, resume="allow", embed=False,
                auto_log_gpu=False, auto_log_cpu=False,
            )  # fmt: skip

    def finished(self, state: RunState, report: Path | None) -> None:
        """Upload the report, and end the run."""
        with redirect_stdout(sys.stderr):
            if report:
                self._run.log_artifact(str(report), name=f"report-{self._name}", type="report")
            self._run.finish()


def named_figures(rows: Sequence[Row]) -> dict[str, float]:
    """Return the figures by name, such as `d1.auroc/A1_mean` and `d1.auroc.rank/A1_mean`; one that is null has none."""
    names = {"value": "", "rank": ".rank"}
    return {
        f"{row['metric']}{end}/{row['entrant']}": row[column]
        for row in rows
        for column, end in names.items()
        if row[column] is not None
    }


def flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings with their path, such as `budget.max_tokens`; lists are JSON."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value if isinstance(value, str) else json.dumps(value)


def _named(name: str) -> str:
    """Return a name without the characters that MLflow refuses."""
    return re.sub(r"[^\w./ -]", "_", name)
