"""Run folders, their states, the displays, and upkeep of the store."""

from __future__ import annotations

import json
import os
import socket
from collections import Counter
from pathlib import Path

import pytest

from poolbench.config import RunConfig, load_run_config
from poolbench.contracts.tasks import Task
from poolbench.errors import ConfigError, ModelError, NotFoundError
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_driver.cli.upkeep import scorer_keys, unneeded
from poolbench_driver.models import _local_shape
from poolbench_driver.run import Failure
from poolbench_driver.run.progress import open_display
from poolbench_driver.rundir import RunFolder, list_runs

CONFIG = load_run_config(None, {"preset": "demo"})
TASK = Task(kind="prober.probe", outputs={"measures": "prober.probe.1"})


def test_the_same_configuration_continues_the_same_run(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path, CONFIG)
    first.file("cancel").touch()
    again = RunFolder.create(tmp_path, CONFIG)
    assert again.path == first.path and not again.file("cancel").exists()
    other = RunFolder.create(tmp_path, RunConfig(seed=1))
    assert other.path != first.path
    assert RunFolder.find(tmp_path, "latest").id == other.id
    assert {run.id for run in list_runs(tmp_path)} == {first.id, other.id}
    assert first.config() == CONFIG


def test_missing_runs_and_tables_are_said(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, CONFIG)
    with pytest.raises(NotFoundError, match=folder.id):
        RunFolder.find(tmp_path, "nothing")
    with pytest.raises(NotFoundError, match=r"results\.parquet yet"):
        folder.read_table("results")
    folder.write_failures([Failure("t", "a.b", "failed", "why", blocked=True)])
    assert folder.read_table("failures").to_pylist()[0]["blocked"] is True


def test_an_outdated_configuration_is_an_error_not_a_guess(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, CONFIG)
    folder.file("config.resolved.yaml").write_text("no_such_setting: 1\n")
    with pytest.raises(ConfigError, match="no_such_setting"):
        folder.config()


def test_an_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ConfigError, match="runs"):
        RunFolder.create(tmp_path / "runs", CONFIG)


def test_a_run_whose_driver_is_gone_has_died(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, CONFIG)
    assert folder.read_state() == {}
    folder.write_state("running", tasks=3)
    assert folder.read_state()["state"] == "running"
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    folder.write_state("running", pid=child)
    assert folder.read_state()["state"] == "died"
    folder.write_state("done", pid=child)
    assert folder.read_state()["state"] == "done"
    folder.write_state("running", pid=child, host=socket.gethostname() + "-other")
    assert folder.read_state()["state"] == "running"


@pytest.mark.parametrize("name", ["rich", "plain", "json", "none"])
def test_displays_take_everything_the_loop_tells(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    display = open_display(name)
    display.note("before the start")
    display.start(Counter({"prober.probe": 2, "third.party": 1}))
    display.tick({TASK.task_id: TASK})
    display.done(TASK, reused=True)
    display.failed("t2", "prober.probe", "a [bracketed] reason")
    display.close()
    shown = capsys.readouterr().err
    if name == "json":
        events = [json.loads(line) for line in shown.splitlines()]
        assert [event["event"] for event in events] == ["note", "start", "done", "failed"]
        assert events[2]["reused"] is True
    elif name != "none":
        assert "a [bracketed] reason" in " ".join(shown.split())


def test_unknown_display_names_the_known() -> None:
    with pytest.raises(ConfigError, match="rich, plain, json, none"):
        open_display("fancy")


def test_gc_spares_what_is_needed_young_or_pointed_at(tmp_path: Path) -> None:
    artifacts = Artifacts(FolderStore(tmp_path))
    for key in ("a.b.needed", "a.b.old", "restricted.a.b.old", "scorer.train.1"):
        artifacts.write(key, {"x": b"123"})
    artifacts.store.put("artifacts/a.b.torn/attempt/x", b"half")
    artifacts.store.put("scorers/contrast/minilm.json", json.dumps({"scorer": "scorer.train.1"}).encode())
    keep = {"a.b.needed"} | scorer_keys(artifacts)
    assert unneeded(artifacts, keep, older_than_s=0) == {}
    assert set(unneeded(artifacts, keep, older_than_s=2e10)) == {"a.b.old", "restricted.a.b.old", "a.b.torn"}


def test_a_model_folder_must_be_whole(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        _local_shape(tmp_path)
    (tmp_path / "config.json").write_text('{"text_config": {"num_hidden_layers": 4, "hidden_size": 16}}')
    with pytest.raises(ModelError, match="no tokenizer"):
        _local_shape(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert _local_shape(tmp_path) == (4, 16)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not JSON"):
        _local_shape(tmp_path)
