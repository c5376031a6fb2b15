"""A backup of the object store, its loss, and the restoration: the run continues and has the same figures."""

import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
from driver.tests.conftest import Driver, SteeredArtifacts
from driver.tests.loop_bench import Bench, Notes, job_of

from poolbench.settings import S3Settings
from poolbench.storage import Artifacts, store_id
from poolbench.storage.folder import FolderStore
from poolbench_driver.cluster.copying import copy_store
from poolbench_driver.records.folder import create_run
from poolbench_driver.results import results_digest


@pytest.fixture
def alone() -> dict[str, str]:
    """An environment that names no cluster."""
    return {name: value for name, value in os.environ.items() if not name.startswith("POOLBENCH_")}


def run_of(bench: Bench, made: SteeredArtifacts, place: Path) -> tuple[str, Notes]:
    """Run a plan on the store of `bench`; return the digest of its results, and what was done."""
    notes, folder = Notes(), create_run(place, made.plan.scope.config)
    assert job_of(bench, made.plan).run(folder, notes).done
    return results_digest(folder.read_table("results")), notes


def test_a_folder_that_was_archived_is_restored(bench: Bench, complete: tuple[SteeredArtifacts, Any]) -> None:
    """As `tar` does it, in the middle of a run: one artifact is not committed yet, and one is torn."""
    made, store = complete[0], Path(complete[0].artifacts.store.uri)
    digest, _ = run_of(bench, made, bench.root / "runs")
    first, second, *_ = next(iter(made.plan.probes.concepts.values())).measures.values()
    made.artifacts.delete(first)
    (store / "artifacts" / second / "manifest.json").unlink()
    archive = bench.root / "backup.tar"
    subprocess.run(["tar", "-C", store, "-cf", archive, "."], check=True)
    shutil.rmtree(store)
    store.mkdir()
    subprocess.run(["tar", "-C", store, "-xf", archive], check=True)
    bench.artifacts = Artifacts(FolderStore(store))
    bench.consume()
    found, notes = run_of(bench, made, bench.root / "again")
    assert found == digest and set(notes.finished) == {made.plan.producers[key].task_id for key in (first, second)}


def test_a_copy_of_a_folder_is_restored(bench: Bench, complete: tuple[SteeredArtifacts, Any]) -> None:
    """Back up twice, lose the store, and restore into an empty one: the run has the same figures and does no work."""
    made, store, backup = complete[0], complete[0].artifacts.store, FolderStore(bench.root / "backup")
    digest, _ = run_of(bench, made, bench.root / "runs")
    late = min(next(iter(made.plan.probes.concepts.values())).measures.values())
    kept = {info.path: store.get(info.path) for info in store.list(f"artifacts/{late}/")}
    made.artifacts.delete(late)
    first = copy_store(store, backup)
    for path, data in kept.items():
        store.put(path, data)
    second = copy_store(store, backup)
    assert first.present == 0 and second.present > 0.9 * first.present and second.objects < first.objects
    identity = store_id(store)
    shutil.rmtree(store.uri)
    target = FolderStore(Path(store.uri))
    assert copy_store(backup, target).objects >= first.objects and store_id(target) == identity
    bench.artifacts = Artifacts(target)
    found, notes = run_of(bench, made, bench.root / "again")
    assert found == digest and not notes.finished


@pytest.mark.lane(name="brokers")
def test_the_command_copies_to_s3_and_back(
    driver: Driver, alone: dict[str, str], tmp_path: Path, s3_service: S3Settings
) -> None:
    """A second copy copies no artifact again; without the right key nothing is copied, and one line says so."""
    Artifacts(FolderStore(tmp_path / "store")).write("a.b.1", {"x": b"1"})
    backup, again = f"s3://poolbench-test/{uuid.uuid4().hex[:8]}", str(tmp_path / "restored")
    keys = {"ACCESS_KEY": s3_service.access_key, "SECRET_KEY": s3_service.secret_key}
    environment = alone | {f"POOLBENCH_S3_{name}": key.get_secret_value() for name, key in keys.items()}
    environment["POOLBENCH_S3_ENDPOINT"] = s3_service.endpoint
    copies = ((str(tmp_path / "store"), backup), (str(tmp_path / "store"), backup), (backup, again))
    said = [driver(environment, "copy-store", *places).stdout for places in copies]
    assert [text.split()[0] for text in said] == ["3", "1", "3"], said  # an object, its manifest, the id of the store
    assert Artifacts(FolderStore(Path(again))).read("a.b.1", "x") == b"1"
    refused = driver(environment | {"POOLBENCH_S3_SECRET_KEY": "wrong"}, "copy-store", backup, str(tmp_path / "none"))
    assert refused.returncode == 1 and "the credentials are refused" in refused.stderr
    assert "Traceback" not in refused.stderr and not list((tmp_path / "none").glob("artifacts/*"))


def test_the_command_copies_nothing_restricted(driver: Driver, alone: dict[str, str], tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    Artifacts(store).write("a.b.1", {"x": b"1"})
    Artifacts(store).write("restricted.a.b.2", {"x": b"secret"})
    store.put("damaged/a.b.3/x", b"1")
    source, target = str(tmp_path / "store"), str(tmp_path / "copy")
    done = driver(alone, "copy-store", source, target)
    assert done.returncode == 0 and "copied; 0 were there already" in done.stdout, done.stderr
    assert Artifacts(FolderStore(tmp_path / "copy")).read("a.b.1", "x") == b"1"
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {"artifacts", "health"}
    assert [path.name for path in (tmp_path / "copy" / "artifacts").iterdir()] == ["a.b.1"]
    allowed = driver(alone | {"POOLBENCH_SENSITIVE": "true"}, "copy-store", source, str(tmp_path / "all"))
    assert allowed.returncode == 0, allowed.stderr
    assert Artifacts(FolderStore(tmp_path / "all")).read("restricted.a.b.2", "x") == b"secret"
    for wrong in ((source, source), (str(tmp_path / "none"), target), ("ftp://x", target)):
        refused = driver(alone, "copy-store", *wrong)
        assert refused.returncode == 2 and refused.stderr.startswith("error: ")
