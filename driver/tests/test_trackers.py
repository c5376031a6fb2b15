"""Trackers that follow a run: their order and failure with one of a test package, and the real tools where they are."""

import importlib
import json
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from driver.tests.conftest import SteeredArtifacts
from driver.tests.loop_bench import Bench, Notes, job_of

from poolbench.contracts import Row
from poolbench.errors import UnknownNameError
from poolbench.registry import Registry
from poolbench_driver.contract.suite import BoardSpec
from poolbench_driver.job import Outcome
from poolbench_driver.records import run_id
from poolbench_driver.records.folder import create_run
from poolbench_driver.trackers import TRACKERS, TrackerKind
from poolbench_driver.trackers.feed import figures

Complete = tuple[SteeredArtifacts, dict[str, pa.Table]]
Follow = Callable[..., Outcome]

FAKE = """
from poolbench_driver.trackers import TrackerKind

calls = []


class Fake:
    def __getattr__(self, name):
        def call(*args):
            calls.append((name, args))
            if name == FAILS:
                raise SystemExit("no disk\\nleft")
        return call


KIND = TrackerKind("fake", Fake)
ABSENT = TrackerKind("absent", lambda: __import__("no_such_tool"), package="no-such-tool")
"""


@pytest.fixture
def follow(bench: Bench, complete: Complete) -> Follow:
    """Runs a plan whose artifacts are there, with trackers."""

    def run(*kinds: TrackerKind) -> Outcome:
        plan = complete[0].plan
        folder = create_run(bench.root / "runs", plan.config)
        bench.notes = Notes()
        return replace(job_of(bench, plan), trackers=kinds).run(folder, bench.notes)

    return run


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A package with two trackers, installed; yields its module and its trackers by name."""
    (tmp_path / "faketracker.py").write_text(FAKE)
    info = tmp_path / "faketracker-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faketracker\nVersion: 0.3\n")
    points = "[poolbench.trackers]\nfake = faketracker:KIND\nabsent = faketracker:ABSENT\n"
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    module: Any = importlib.import_module("faketracker")
    module.FAILS = ""
    yield module, Registry("tracker", TrackerKind, group=TRACKERS.group, built_in=())
    del sys.modules["faketracker"]


def test_a_tracker_of_another_package_gets_a_run_in_order(follow: Follow, fake: Any) -> None:
    module, registry = fake
    outcome = follow(registry.get("fake"))
    names = [name for name, _ in module.calls]
    assert names[0] == "started" and names[-2:] == ["figures", "finished"]
    assert set(names[1:-2]) <= {"progress"}
    run, settings = module.calls[0][1]
    assert (run.id, run.path) == (outcome.folder.id, outcome.folder.path)
    assert settings == outcome.folder.config.model_dump(mode="json") and json.dumps(settings)
    assert module.calls[-1][1] == (outcome.state, outcome.report)
    (rows,) = module.calls[-2][1]
    assert {row["metric"] for row in rows} >= {"d1.auroc"} and all(row["entrant"] for row in rows)
    assert outcome.folder.id == run_id(outcome.folder.config), "a tracker does not name the run"


@pytest.mark.parametrize("call", ["started", "figures"])
def test_a_tracker_that_fails_is_one_line_and_the_run_is_as_without_it(
    bench: Bench, follow: Follow, fake: Any, call: str
) -> None:
    module, registry = fake
    module.FAILS = call
    outcome = follow(registry.get("fake"), registry.get("absent"))
    names = [name for name, _ in module.calls]
    assert names == ["started"] if call == "started" else names[-1] == "finished"
    lines = warnings(bench)
    assert len(lines) == 2
    (absent,) = [line for line in lines if "absent" in line]
    assert absent.endswith("ModuleNotFoundError: No module named 'no_such_tool'; pip install no-such-tool")
    assert any("tracker fake" in line and "SystemExit: no disk left" in line for line in lines)
    assert outcome.digest == follow().digest


def test_a_wrong_name_has_the_nearest_one() -> None:
    with pytest.raises(UnknownNameError, match="did you mean wandb"):
        TRACKERS.get("wandbb")
    assert [kind.id for kind in TRACKERS.all()][:3] == ["mlflow", "wandb", "trackio"]


def test_a_figure_with_a_cell_that_is_null_is_null() -> None:
    board = BoardSpec(ranked=("d1.auroc",), shown=("d1.auroc",))

    def row(strategy: str, concept: str, value: float | None) -> Row:
        return {
            "metric": "d1.auroc", "strategy": strategy, "concept": concept, "value": value, "layer": 1, "model": "m",
            "status": "ok" if value is not None else "too_few", "reason": None,
        }  # fmt: skip

    rows = [row("a", "c", 0.5), row("a", "d", 0.7), row("b", "c", 0.9), row("b", "d", None)]
    params = json.dumps({"of": "d1.auroc", "board": "all"})
    rows.append({**row("b", "", 1.5), "metric": "rank.mean", "params": params})
    first, second = figures(rows, board)
    both = {"metric": "d1.auroc", "num_cells": 2}
    assert first == both | {"entrant": "a", "value": pytest.approx(0.6), "rank": None, "num_null": 0}
    assert second == both | {"entrant": "b", "value": None, "rank": 1.5, "num_null": 1}


def tool(name: str) -> TrackerKind:
    """A tracker whose package is here."""
    pytest.importorskip(name, reason=f"{name} is not installed (make test-clients)")
    return TRACKERS.get(name)


def warnings(bench: Bench) -> list[str]:
    """What the last run showed of its trackers."""
    return [line for line in bench.notes.lines if line.startswith("tracker ")]


@pytest.mark.lane(name="clients")
def test_mlflow_has_the_run_once(bench: Bench, follow: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    kind = tool("mlflow")
    outcome = follow(kind)
    assert not warnings(bench)
    follow(kind)  # continues it
    assert not warnings(bench)
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("poolbench")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == (outcome.folder.id, "FINISHED")
    config = outcome.folder.config
    assert run.data.params["seed"] == str(config.seed) and run.data.params["budget.name"] == config.budget.name
    values = [value for name, value in run.data.metrics.items() if name.startswith("d1.auroc/")]
    assert values and run.data.metrics["tasks_done"] == run.data.metrics["tasks"]
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"index.html", "results.parquet"}


@pytest.mark.lane(name="clients")
def test_wandb_writes_the_run_offline(
    bench: Bench, follow: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path))
    outcome = follow(tool("wandb"))
    assert not warnings(bench)
    (file,) = tmp_path.rglob(f"run-{outcome.folder.id}.wandb")
    content = file.read_bytes()
    for text in ("d1.auroc/", "tasks_done", "num_openings", f"report-{outcome.folder.id}"):
        assert text.encode() in content, text


@pytest.mark.lane(name="clients")
def test_trackio_has_the_run(
    bench: Bench, follow: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))  # it is read at the import
    outcome = follow(tool("trackio"))
    assert not warnings(bench)
    import trackio

    assert capsys.readouterr().out == "", "standard output is for data"
    folder = Path(trackio.utils.TRACKIO_DIR)
    with sqlite3.connect(folder / "poolbench.db") as database:
        rows = database.execute("select metrics from metrics where run_name = ?", [outcome.folder.id]).fetchall()
    values = {name for (metrics,) in rows for name in json.loads(metrics)}
    assert "tasks_done" in values and any(name.startswith("d1.auroc/") for name in values)
    assert os.listdir(folder / "artifacts" / "poolbench")
