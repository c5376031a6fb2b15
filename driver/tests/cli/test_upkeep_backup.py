"""A backup of the object store, its loss, and the restoration: the run continues and has the same figures."""

import os
import shutil
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driver.tests.conftest import Driver, SteeredArtifacts
from driver.tests.loop_bench import Bench, Notes, job_of

from poolbench.contracts.results import results_digest
from poolbench.settings import S3Settings
from poolbench.storage import Artifacts, store_id
from poolbench.storage.copying import copy_store
from poolbench.storage.folder import FolderStore
from poolbench.storage.s3 import S3Store
from poolbench_driver.records import Run, create_run

Complete = tuple[SteeredArtifacts, dict[str, Any]]


def digest_of(folder: Run) -> str:
    return results_digest(folder.read_table("results"))


def continued(bench: Bench, made: SteeredArtifacts, store: Any, place: Path) -> tuple[str, Notes]:
    """Run the same command on another store; return the digest of its results, and what was done."""
    bench.artifacts, notes = Artifacts(store), Notes()
    bench.consume()
    folder = create_run(place, made.plan.scope.config)
    assert job_of(bench, made.plan).run(folder, notes).done
    return digest_of(folder), notes


def undisturbed(bench: Bench, made: SteeredArtifacts) -> str:
    """Run to the end; every artifact is there already."""
    folder = create_run(bench.root / "runs", made.plan.scope.config)
    assert job_of(bench, made.plan).run(folder, Notes()).done
    return digest_of(folder)


def some_measures(made: SteeredArtifacts) -> list[str]:
    (cells,) = made.plan.probes.concepts.values()
    return sorted(cells.measures.values())


def test_a_folder_that_was_archived_is_restored(bench: Bench, complete: Complete) -> None:
    """As `tar` does it, in the middle of a run: one artifact is not committed yet, and one is torn."""
    made, _ = complete
    digest, store = undisturbed(bench, made), Path(made.artifacts.store.uri)
    first, second = some_measures(made)[:2]
    made.artifacts.delete(first)
    (made.artifacts.store.root / "artifacts" / second / "manifest.json").unlink()
    archive = bench.root / "backup.tar"
    subprocess.run(["tar", "-C", store, "-cf", archive, "."], check=True)
    shutil.rmtree(store)
    store.mkdir()
    subprocess.run(["tar", "-C", store, "-xf", archive], check=True)
    found, notes = continued(bench, made, FolderStore(store), bench.root / "again")
    assert found == digest and set(notes.finished) == {made.plan.producers[key].task_id for key in (first, second)}


def restore(
    bench: Bench, complete: Complete, backup: Any, open_target: Callable[[], Any], undo: Callable[[], None]
) -> None:
    """Back up twice, lose the store, and restore into an empty one."""
    made, _ = complete
    digest, store = undisturbed(bench, made), made.artifacts.store
    late = some_measures(made)[0]
    kept = {info.path: store.get(info.path) for info in store.list(f"artifacts/{late}/")}
    made.artifacts.delete(late)
    first = copy_store(store, backup)
    for path, data in kept.items():
        store.put(path, data)
    second = copy_store(store, backup)
    assert first.present == 0 and second.present > 0.9 * first.present and second.objects < first.objects
    identity = store_id(store)
    undo()
    target = open_target()
    assert copy_store(backup, target).objects >= first.objects
    assert store_id(target) == identity
    found, notes = continued(bench, made, target, bench.root / "again")
    assert found == digest and not notes.finished


def test_a_copy_of_a_folder_is_restored(bench: Bench, complete: Complete) -> None:
    place = Path(complete[0].artifacts.store.uri)
    backup = FolderStore(bench.root / "backup")
    restore(bench, complete, backup, lambda: FolderStore(place), lambda: shutil.rmtree(place))


@pytest.mark.lane(name="brokers")
def test_a_copy_in_s3_is_restored_to_another_bucket(bench: Bench, complete: Complete, s3_service: S3Settings) -> None:
    """As after a move to another service: from a folder to S3, and from there to another bucket."""
    backup, target = (S3Store(f"s3://poolbench-test/{uuid.uuid4().hex[:8]}", s3_service) for _ in range(2))
    place = Path(complete[0].artifacts.store.uri)
    restore(bench, complete, backup, lambda: target, lambda: shutil.rmtree(place))


@pytest.mark.lane(name="brokers")
def test_the_command_copies_to_s3_and_back(driver: Driver, tmp_path: Path, s3_service: S3Settings) -> None:
    """A second copy copies no artifact again; without the right key nothing is copied, and one line says so."""
    Artifacts(FolderStore(tmp_path / "store")).write("a.b.1", {"x": b"1"})
    backup, again = f"s3://poolbench-test/{uuid.uuid4().hex[:8]}", str(tmp_path / "restored")
    keys = {"ACCESS_KEY": s3_service.access_key, "SECRET_KEY": s3_service.secret_key}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POOLBENCH_")}
    environment |= {f"POOLBENCH_S3_{name}": key.get_secret_value() for name, key in keys.items()}
    environment["POOLBENCH_S3_ENDPOINT"] = s3_service.endpoint
    copies = ((str(tmp_path / "store"), backup), (str(tmp_path / "store"), backup), (backup, again))
    said = [driver(environment, "copy-store", *places).stdout for places in copies]
    assert [text.split()[0] for text in said] == ["3", "1", "3"], said  # an object, its manifest, the id of the store
    assert Artifacts(FolderStore(Path(again))).read("a.b.1", "x") == b"1"
    refused = driver(environment | {"POOLBENCH_S3_SECRET_KEY": "wrong"}, "copy-store", backup, str(tmp_path / "none"))
    assert refused.returncode == 1 and "the credentials are refused" in refused.stderr
    assert "Traceback" not in refused.stderr and not list((tmp_path / "none").glob("artifacts/*"))


def test_the_command_copies_nothing_restricted(driver: Driver, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    Artifacts(store).write("a.b.1", {"x": b"1"})
    Artifacts(store).write("restricted.a.b.2", {"x": b"secret"})
    store.put("damaged/a.b.3/x", b"1")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POOLBENCH_")}
    source, target = str(tmp_path / "store"), str(tmp_path / "copy")
    done = driver(environment, "copy-store", source, target)
    assert done.returncode == 0 and "copied; 0 were there already" in done.stdout, done.stderr
    assert Artifacts(FolderStore(tmp_path / "copy")).read("a.b.1", "x") == b"1"
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {"artifacts", "health"}
    assert [path.name for path in (tmp_path / "copy" / "artifacts").iterdir()] == ["a.b.1"]
    allowed = driver(environment | {"POOLBENCH_SENSITIVE": "true"}, "copy-store", source, str(tmp_path / "all"))
    assert allowed.returncode == 0, allowed.stderr
    assert Artifacts(FolderStore(tmp_path / "all")).read("restricted.a.b.2", "x") == b"secret"
    for wrong in ((source, source), (str(tmp_path / "none"), target), ("ftp://x", target)):
        refused = driver(environment, "copy-store", *wrong)
        assert refused.returncode == 2 and refused.stderr.startswith("error: ")
