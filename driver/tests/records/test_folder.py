"""Run folders, their states, the displays, and upkeep of the store."""

import json
import os
import shutil
import socket
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolbench.errors import ConfigError, IntegrityError, NotFoundError
from poolbench.statuses import RunState
from poolbench_driver.config import ConceptsConfig
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.records import Run, Runs, find_run, find_runs, run_at
from poolbench_driver.records.folder import create_run, write_failures, write_manifest, write_state, write_table
from poolbench_driver.records.run import FOLDER_VERSION, manifest_files
from poolbench_driver.stages.failure import Failure

CONFIG = load_run_config(None, {"preset": "demo"})


def test_the_same_configuration_continues_the_same_run(tmp_path: Path) -> None:
    first = create_run(tmp_path, CONFIG)
    again = create_run(tmp_path, CONFIG)
    assert again.path == first.path
    other = create_run(tmp_path, ConceptsConfig(seed=1))
    assert other.path != first.path
    assert Runs(tmp_path).find("latest").id == other.id
    assert {run.id for run in Runs(tmp_path).all()} == {first.id, other.id}
    assert first.config == CONFIG


def test_missing_runs_and_tables_are_said(tmp_path: Path) -> None:
    folder = create_run(tmp_path, CONFIG)
    with pytest.raises(NotFoundError, match=folder.id):
        Runs(tmp_path).find("nothing")
    with pytest.raises(NotFoundError, match=r"results\.parquet yet"):
        folder.read_table("results")
    write_failures(folder, [Failure("t", "a.b", "failed", "why", blocked=True)])
    assert folder.read_table("failures").to_pylist()[0]["blocked"] is True


def test_an_outdated_configuration_is_an_error_not_a_guess(tmp_path: Path) -> None:
    folder = create_run(tmp_path, CONFIG)
    folder.file("config.resolved.yaml").write_text("no_such_setting: 1\n")
    with pytest.raises(ConfigError, match="no_such_setting"):
        folder.config  # noqa: B018


def test_an_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ConfigError, match="runs"):
        create_run(tmp_path / "runs", CONFIG)


def test_a_run_whose_driver_is_gone_has_died(tmp_path: Path) -> None:
    folder = create_run(tmp_path, CONFIG)
    assert folder.read_state() == {}
    write_state(folder, "running", tasks=3)
    assert folder.read_state()["state"] == "running"
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    write_state(folder, "running", pid=child)
    assert folder.read_state()["state"] == "died"
    write_state(folder, "done", pid=child)
    assert folder.read_state()["state"] == "done"
    write_state(folder, "running", pid=child, host=socket.gethostname() + "-other")
    assert folder.read_state()["state"] == "running"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[1, 2]", b"{", b"{}", b'{"state": 3}', b"[" * 9999, b""])
def test_a_state_that_cannot_be_read_is_said(tmp_path: Path, content: bytes) -> None:
    folder = create_run(tmp_path, CONFIG)
    folder.file("state.json").write_bytes(content)
    assert folder.read_state() == {"state": "damaged"}
    write_state(folder, "running", pid="x")
    assert folder.read_state()["state"] == "died"


def test_damaged_tables_and_configurations_are_named_with_what_to_do(tmp_path: Path) -> None:
    folder = create_run(tmp_path, CONFIG)
    write_failures(folder, [Failure("t", "a.b", "failed", "why")])
    for content in (b"", b"garbage", folder.file("failures.parquet").read_bytes()[:-9]):
        folder.file("failures.parquet").write_bytes(content)
        with pytest.raises(IntegrityError, match=r"failures\.parquet is damaged.*poolbench-driver run"):
            folder.read_table("failures")
    folder.file("config.resolved.yaml").write_bytes(b"\xff{")
    with pytest.raises(ConfigError, match="run the command of"):
        folder.config  # noqa: B018


def test_a_table_of_another_version_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = create_run(tmp_path, CONFIG)
    table = pa.table({"x": [1]})
    write_table(folder, "results", table)
    write_manifest(folder)
    assert folder.read_table("results").equals(table)
    manifest = folder.file("manifest.json")
    assert list(manifest_files(manifest.read_bytes(), manifest)) == ["config.resolved.yaml", "results.parquet"]
    for notes, version in (({"poolbench.folder_version": "99"}, "99"), ({}, "none")):
        pq.write_table(table.replace_schema_metadata(notes), folder.file("results.parquet"))
        with pytest.raises(
            ConfigError, match=rf"results\.parquet has version {version}, and this PoolBench reads {FOLDER_VERSION};"
        ):
            folder.read_table("results")


@pytest.mark.parametrize("version", [99, None])
def test_state_and_manifest_of_another_version_are_refused_in_one_line(tmp_path: Path, version: int | None) -> None:
    folder = create_run(tmp_path, CONFIG)
    write_state(folder, RunState.DONE)
    write_manifest(folder)
    assert Runs(tmp_path).find("latest").id == find_run(tmp_path, str(folder.path)).id == folder.id
    for name in ("state.json", "manifest.json"):
        content = json.loads(folder.file(name).read_text())
        assert content.pop("schema_version") == FOLDER_VERSION
        folder.file(name).write_text(json.dumps(content if version is None else {**content, "schema_version": version}))
    for name in ("latest", str(folder.path)):
        with pytest.raises(
            ConfigError, match=rf"state\.json has version {version}, and this PoolBench reads {FOLDER_VERSION};"
        ):
            find_run(tmp_path, name)
    assert write_state(create_run(tmp_path, CONFIG), RunState.RUNNING)["schema_version"] == FOLDER_VERSION
    with pytest.raises(ConfigError if version else IntegrityError, match=r"manifest\.json"):
        manifest_files(folder.file("manifest.json").read_bytes(), folder.file("manifest.json"))


@pytest.fixture
def finished(tmp_path: Path) -> Run:
    """A run that has ended, below `runs`."""
    folder = create_run(tmp_path / "runs", CONFIG)
    write_table(folder, "results", pa.table({"metric": ["d1.auroc"], "value": [0.8]}))
    write_state(folder, RunState.DONE)
    write_manifest(folder)
    return folder


def test_copies_are_one_run_and_a_renamed_folder_keeps_its_id(finished: Run, tmp_path: Path) -> None:
    runs, name = tmp_path / "runs", finished.id
    copy = Path(shutil.copytree(finished.path, runs / "a copy"))
    assert [run.path for run in Runs(runs).all()] == [finished.path]  # though the copy is newer
    assert run_at(copy).id == name and find_runs(runs, [name, "a copy", str(copy)])[0].path == finished.path
    shutil.rmtree(copy)
    renamed = finished.path.rename(runs / "before the fix")
    assert [run.id for run in Runs(runs).all()] == [name]
    for wanted in (name, "before the fix", "latest"):
        found = Runs(runs).find(wanted)
        assert (found.path, found.id) == (renamed, name)
    with pytest.raises(NotFoundError, match=f"there are: {name}"):
        Runs(runs).find("after the fix")


def test_runs_of_one_configuration_with_other_results_are_two(finished: Run, tmp_path: Path) -> None:
    runs, name = tmp_path / "runs", finished.id
    before = Run(Path(shutil.copytree(finished.path, runs / "before")))
    write_table(finished, "results", pa.table({"metric": ["d1.auroc"], "value": [0.9]}))
    assert {run.id: run.path for run in Runs(runs).all()} == {name: finished.path, "before": before.path}
    finished.path.rename(runs / "after")
    assert {run.id for run in Runs(runs).all()} == {"before", "after"}
    assert Runs(runs).find("after").id == "after" and len(find_runs(runs, ["before", "after"])) == 2


def test_a_run_without_results_is_a_copy_by_its_settings(tmp_path: Path) -> None:
    begun = create_run(tmp_path, CONFIG)
    shutil.copytree(begun.path, tmp_path / "copy")
    create_run(tmp_path, ConceptsConfig(seed=1))
    assert len(Runs(tmp_path).all()) == 2


@pytest.mark.parametrize("content", ['{"run_id": "../../elsewhere"}', '{"run_id": 7}', "[]", "no JSON"])
def test_an_id_that_cannot_be_is_not_taken_from_a_manifest(finished: Run, content: str) -> None:
    finished.file("manifest.json").write_text(content)
    renamed = finished.path.rename(finished.path.with_name("renamed"))
    assert run_at(renamed).id == "renamed"
