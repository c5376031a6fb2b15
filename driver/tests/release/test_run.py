"""A run as a whole is exported: complete, as its driver left it, and without any text."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driver.tests.releases import content_of
from driver.tests.run_folders import assembled

from poolbench.errors import IntegrityError, NotFoundError
from poolbench_driver.records import Run, Runs
from poolbench_driver.records.folder import create_run, write_manifest, write_table
from poolbench_driver.records.record import RunRecords, encode_keys
from poolbench_driver.release.run import export_run
from poolbench_driver.report.making import write_report


@pytest.fixture(scope="module")
def measured(steered_in: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = steered_in(tmp_path_factory.mktemp("measured"), concepts=["contrast", "toxicity"])
    return made.write(lambda key, opening, strength, scorer: 0.3 + 0.01 * opening + 0.1 * strength)


@pytest.fixture(scope="module")
def finished(measured: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The folder of a run as its driver leaves it."""
    folder = assembled(measured, tmp_path_factory.mktemp("runs"))
    write_report(folder)
    write_manifest(folder, config_hash=measured.plan.scope.config.config_hash())
    return folder


@pytest.fixture
def folder(finished: Run, tmp_path: Path) -> Run:
    """A copy of that folder."""
    shutil.copytree(finished.path.parent, tmp_path / "runs", symlinks=True)
    return Run(tmp_path / "runs" / finished.id)


def released(measured: Any, folder: Run, output: Path) -> dict[str, Any]:
    where = {"licence": "cc-by-4.0", "command": f"poolbench-driver export run {folder.id}"}
    return export_run(folder, measured.artifacts, measured.plan.keys, output, **where)


def test_a_run_is_exported_whole_and_reads_as_a_run(measured: Any, folder: Run, tmp_path: Path) -> None:
    manifest = released(measured, folder, tmp_path / "out")
    copy = Runs(tmp_path / "out").find(folder.id)
    assert copy.config == folder.config
    for file in folder.path.glob("*.parquet"):
        assert pq.read_table(copy.file(file.name)).equals(pq.read_table(file)), file.name
    for name in ("report/index.html", "report/view.json", "manifest.json"):
        assert copy.file(name).read_bytes() == folder.file(name).read_bytes()
    assert not copy.file("state.json").exists()  # names the machine
    environment = json.loads((tmp_path / "out/environment.json").read_text())
    assert environment["exported_on"]["packages"]["pyarrow"] and "prober.probe" in environment["run"]
    assert (manifest["model"], manifest["model_revision"], manifest["licence"]) == ("demo", "local-0", "cc-by-4.0")
    card = (tmp_path / "out/README.md").read_text()
    assert card.startswith("---\nlicense: cc-by-4.0\n") and f"`poolbench-driver export run {folder.id}`" in card


def test_no_text_leaves_with_a_run(measured: Any, folder: Run, tmp_path: Path) -> None:
    """Steered texts, and the tables of scores of the services, hold a mark; passages are looked for themselves."""
    write_table(folder, "evidence", pa.table({"text": [measured.SECRET]}))
    write_manifest(folder)
    released(measured, folder, tmp_path / "out")
    passages = measured.plan.vectors.concepts["toxicity"].passages.values()
    texts = [text for key in passages for text in measured.plan.local[key].build()["text"].to_pylist()]
    for name, data in content_of(tmp_path / "out").items():
        shown = data.decode("utf-8", "replace")
        if name.endswith(".parquet"):
            shown = str(pq.read_table(tmp_path / "out" / name).to_pylist())
        assert measured.SECRET not in shown, name
        assert not any(text in shown or repr(text)[1:-1] in shown for text in texts), name


def test_a_run_that_has_not_ended_or_has_changed_is_refused(measured: Any, folder: Run, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="has not ended"):
        released(measured, create_run(tmp_path / "others", measured.plan.scope.config), tmp_path / "out")
    write_table(folder, "curves", folder.read_table("curves").slice(1))
    with pytest.raises(IntegrityError, match=r"curves\.parquet is not as its manifest says"):
        released(measured, folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_exports_a_run_from_its_record(
    measured: Any, folder: Run, tmp_path: Path, driver: Any, environment: dict[str, str]
) -> None:
    measured.artifacts.store.put(f"runs/{folder.id}/keys.json.gz", encode_keys(measured.plan.keys))
    assert RunRecords(measured.artifacts.store).keys(folder.id) == measured.plan.keys
    environment = {**environment, "POOLBENCH_STORE": measured.artifacts.store.uri}
    where = ("--runs", str(tmp_path / "runs"), "--output", str(tmp_path / "out"))
    ended = driver(environment, "export", "run", "latest", *where)
    assert ended.returncode == 0, ended.stderr
    assert f"run {folder.id}" in ended.stdout and "licence unknown" in ended.stdout
    shown = driver(environment, "leaderboard", folder.id, "--output", str(tmp_path / "out"))
    assert shown.returncode == 0, shown.stderr
