"""Records of runs in the object store: what a driver writes, and how other machines read it."""

import hashlib
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.waiting import wait_until

from poolbench.contracts.wire import RUN_FILES, run_path
from poolbench.errors import IntegrityError, NotFoundError, StoreError
from poolbench.storage import Artifacts
from poolbench.storage.base import ObjectStore
from poolbench.storage.folder import FolderStore
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.records import Run, Runs, record
from poolbench_driver.records.folder import create_run, write_manifest, write_state, write_table
from poolbench_driver.records.progress import FirstFigures
from poolbench_driver.records.record import RunRecords
from poolbench_driver.records.writer import Rhythm, RunWriter

CONFIG = load_run_config(None, {"preset": "demo"})
QUICK = Rhythm(tick_s=0.02, heartbeat_s=0.1)
AN_HOUR_S = 3600.0


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """A store in a folder: that S3 behaves as it does, the tests of stores check."""
    return FolderStore(tmp_path / "store")


@pytest.fixture
def folder(tmp_path: Path) -> Run:
    return create_run(tmp_path / "runs", CONFIG)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """The folder of runs on another machine."""
    return tmp_path / "elsewhere"


def writer(store: ObjectStore, folder: Run, notes: list[str] | None = None) -> RunWriter:
    made = RunWriter(store, folder, (notes if notes is not None else []).append, QUICK)
    made.write_plan(CONFIG, ["b.c.2", "a.b.1"])
    return made


def state_of(store: ObjectStore, run_id: str) -> Any:
    return (RunRecords(store).get(run_id) or {}).get("state")


def written_s(store: ObjectStore, run_id: str) -> float:
    """Return when the state of a run was written, by the store's clock; 0 before that."""
    return max((info.modified_s for info in store.list(run_path(run_id, "state.json"))), default=0.0)


def test_another_machine_sees_a_run_by_its_id_alone(store: ObjectStore, folder: Run, elsewhere: Path) -> None:
    assert RunRecords(store).all() == {} and RunRecords(store).get(folder.id) is None
    with writer(store, folder) as published:
        published.write_state("running", tasks=5)
        wait_until(lambda: state_of(store, folder.id) == "running")
        published.write_state("running", tasks=5, tasks_done=3, failures=1)
        wait_until(lambda: Runs(elsewhere, RunRecords(store)).find(folder.id).read_state().get("tasks_done") == 3)
        (run,) = Runs(elsewhere, RunRecords(store)).all()
        assert not run.is_here and run.unfinished
        assert run.read_state().items() >= {"host": socket.gethostname(), "pid": os.getpid(), "tasks": 5}.items()
        published.write_state("done", tasks=5, tasks_done=5, results_digest="d")
    state = Runs(elsewhere, RunRecords(store)).find("latest").read_state()
    assert (state["state"], state["results_digest"], state["folder"]) == ("done", "d", str(folder.path))
    assert RunRecords(store).keys(folder.id) == {"a.b.1", "b.c.2"}
    assert type(CONFIG).model_validate(json.loads(store.get(run_path(folder.id, "config.json")))) == CONFIG


def test_a_driver_notices_a_mark_and_an_old_mark_ends_nothing(store: ObjectStore, folder: Run) -> None:
    records = RunRecords(store)
    records.cancel(folder.id)
    with writer(store, folder) as published:
        published.write_state("running")
        wait_until(lambda: state_of(store, folder.id) == "running")
        assert not published.cancelled()
        records.cancel(folder.id)
        wait_until(published.cancelled)


def test_a_driver_writes_although_nothing_changes_and_has_died_when_it_does_not(
    store: ObjectStore, folder: Run, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writer(store, folder) as published:
        published.write_state("running", tasks=5)
        first = wait_until(lambda: written_s(store, folder.id))
        wait_until(lambda: written_s(store, folder.id) > first)
        assert state_of(store, folder.id) == "running"
    monkeypatch.setattr(record, "DIED_AFTER_S", 0.5)
    wait_until(lambda: state_of(store, folder.id) == "died")
    assert Runs(folder.path.parent, RunRecords(store)).find(folder.id).state == "running"  # this process lives
    assert Runs(elsewhere, RunRecords(store)).find(folder.id).state == "died"
    with writer(store, folder) as published:
        published.write_state("done")
    assert state_of(store, folder.id) == "done"


@pytest.mark.parametrize("skew_s", [-AN_HOUR_S, AN_HOUR_S])
def test_clocks_of_the_machines_play_no_part(
    store: ObjectStore, folder: Run, monkeypatch: pytest.MonkeyPatch, skew_s: float
) -> None:
    """The reader's clock is wrong by an hour, then the driver's."""
    true_time = time.time
    with writer(store, folder) as published:
        published.write_state("running")
        wait_until(lambda: state_of(store, folder.id) == "running")
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", lambda: true_time() + skew_s)
            assert state_of(store, folder.id) == "running"
        monkeypatch.setattr("poolbench_driver.records.folder.now", lambda: "2026-01-01T00:00:00+00:00")
        published.write_state("running", tasks=1)
        wait_until(lambda: (RunRecords(store).get(folder.id) or {}).get("tasks") == 1)
        assert state_of(store, folder.id) == "running"


class Away(FolderStore):
    """A store that refuses records while `away`."""

    away = True

    def put(self, path: str, data: bytes, *, if_absent: bool = False) -> bool:
        if self.away:
            raise StoreError("the store does not answer")
        return super().put(path, data, if_absent=if_absent)


def test_a_store_that_is_away_stops_nothing_and_is_said_once(tmp_path: Path, folder: Run) -> None:
    store, notes = Away(tmp_path / "store"), list[str]()
    with writer(store, folder, notes) as published:
        published.write_state("running", tasks=7)
        wait_until(lambda: notes)
        store.away = False
        wait_until(lambda: state_of(store, folder.id) == "running")
        assert RunRecords(store).keys(folder.id)
        store.away = True
        published.write_state("done", tasks=7)
    assert folder.read_state()["state"] == "done"
    assert len(notes) == 2 and all("other machines do not see it: the store does not answer" in note for note in notes)


def test_a_store_that_hangs_does_not_hold_up_the_end(tmp_path: Path, folder: Run) -> None:
    released = threading.Event()

    class Hanging(FolderStore):
        def put(self, path: str, data: bytes, *, if_absent: bool = False) -> bool:
            return bool(released.wait(60))

    with RunWriter(Hanging(tmp_path / "s"), folder, print, Rhythm(0.01, 0.1, end_s=0.2)) as published:
        published.write_state("running")
        time.sleep(0.1)
        published.write_state("done")
    assert folder.read_state()["state"] == "done"
    released.set()


def test_folder_and_record_are_one_run(
    store: ObjectStore, folder: Run, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is right about other machines; the folder about drivers here."""
    runs = Runs(folder.path.parent, RunRecords(store))
    write_state(folder, "interrupted", tasks=9)
    with monkeypatch.context() as patched:
        patched.setattr(socket, "gethostname", lambda: "other-machine")
        other = create_run(elsewhere, CONFIG)
        with writer(store, other) as published:
            published.write_state("running", tasks=9, tasks_done=4)
            wait_until(lambda: state_of(store, folder.id) == "running")
    (run,) = runs.all()
    assert run.is_here and (run.state, run.read_state()["host"]) == ("running", "other-machine")
    write_state(folder, "starting", pid=os.getpid())  # a driver begins here, and has no record yet
    assert runs.find(folder.id).state == "starting"
    lonely = create_run(folder.path.parent, CONFIG.model_copy(update={"seed": 5}))
    assert [each.id for each in runs.all()] == [folder.id, lonely.id]
    assert runs.find("latest").id == lonely.id  # the folder's own
    assert Runs(elsewhere / "empty", RunRecords(store)).find("latest").id == folder.id
    with pytest.raises(NotFoundError, match=rf"no run 'x' in .* or the object store; there are: {folder.id}"):
        runs.find("x")
    with pytest.raises(NotFoundError, match="no run"):
        runs.find("../../etc")


def test_a_renamed_folder_and_its_record_are_one_run(store: ObjectStore, folder: Run) -> None:
    name, runs = folder.id, Runs(folder.path.parent, RunRecords(store))
    write_table(folder, "results", pa.table({"metric": ["d1.auroc"]}))
    write_manifest(folder)
    with writer(store, folder) as published:
        published.write_files()
        published.write_state("done")
    renamed = folder.path.rename(folder.path.with_name("kept"))
    (run,) = runs.all()
    assert (run.id, run.path, run.record is not None) == (name, renamed, True)
    assert runs.find("kept").record == run.record and runs.find("latest").id == name
    assert runs.fetch(run, renew=True).path == renamed  # nothing is copied beside it


def test_a_folder_stays_until_the_files_of_its_later_run_are_there(store: ObjectStore, folder: Run) -> None:
    output = folder.path.parent
    write_state(folder, "done")
    (folder.path / "results.parquet").write_bytes(b"before")
    with writer(store, folder) as published:
        published.write_state("done", results_digest="d")
    earlier = {**folder.read_state(), "updated_at": "earlier", "host": "other-machine"}
    (folder.path / "state.json").write_text(json.dumps(earlier))
    runs = Runs(output, RunRecords(store))
    run = runs.find(folder.id)
    store.delete(run_path(folder.id, f"{RUN_FILES}manifest.json"))
    with pytest.raises(NotFoundError, match=r"has no manifest\.json"):
        runs.fetch(run, renew=True)
    assert (folder.path / "results.parquet").read_bytes() == b"before"
    files = {"results.parquet": {"sha256": hashlib.sha256(b"after").hexdigest()}}
    manifest = {"files": files, "schema_version": run.read_state()["schema_version"]}
    for name, data in (("manifest.json", json.dumps(manifest).encode()), ("results.parquet", b"after")):
        store.put(run_path(folder.id, f"{RUN_FILES}{name}"), data)
    assert runs.fetch(run, renew=True).path == folder.path
    assert (folder.path / "results.parquet").read_bytes() == b"after"
    assert [place.name for place in output.iterdir() if place.name.startswith(".")] == []


def test_a_record_says_what_its_run_measures(store: ObjectStore, folder: Run) -> None:
    with writer(store, folder):
        pass
    found = RunRecords(store).config(folder.id)
    assert (found.model, found.concepts) == (CONFIG.model, CONFIG.concepts)
    hostile = b'{"model": "\\u001b[2J", "concepts": ["\\u202e"]}'
    for raw in (b"", b"[]", b'{"model": 1}', hostile):
        store.put(run_path("hurt", "config.json"), raw)
        hurt = RunRecords(store).config("hurt")
        assert all(text.isprintable() for text in (hurt.model, *hurt.concepts))


@pytest.mark.parametrize("raw", [b"", b"\xff", b"[]", b"{}", b'{"state": "well"}', b"[" * 9999, b'{"state": 1}'])
def test_a_damaged_record_is_said_and_hides_no_other(store: ObjectStore, folder: Run, raw: bytes) -> None:
    for name in ("state.json", "keys.json.gz"):
        store.put(run_path("hurt", name), raw)
    store.put("runs/stray", b"x")
    store.put("runs/\x1b[2J/state.json", b"{}")
    with writer(store, folder) as published:
        published.write_state("done")
    records = RunRecords(store)
    assert {run_id: state["state"] for run_id, state in records.all().items()} == {"hurt": "damaged", folder.id: "done"}
    with pytest.raises(IntegrityError, match="poolbench-driver gc --forget hurt"):
        records.keys("hurt")


def test_a_hostile_state_is_safe_to_print(store: ObjectStore) -> None:
    hostile = {"state": "done", "host": "\x1b[2J\x9b", "updated_at": "a\nb", "folder": "\u202e" * 9999, "more": "\x07"}
    store.put(run_path("r", "state.json"), json.dumps(hostile).encode())
    found = RunRecords(store).get("r")
    assert found is not None and all(str(value).isprintable() for value in found.values())


def test_a_forgotten_run_is_gone_and_an_interrupted_removal_keeps_its_keys(store: ObjectStore, folder: Run) -> None:
    with writer(store, folder) as published:
        published.write_state("done")
    records = RunRecords(store)
    store.delete(run_path(folder.id, "state.json"))
    assert records.all() == {folder.id: {}} and records.keys(folder.id)
    records.forget(folder.id)
    assert records.all() == {} and list(store.list("runs/")) == []


def test_the_first_figures_of_a_run_are_noted_once(folder: Run, tmp_path: Path) -> None:
    notes, artifacts = list[str](), Artifacts(FolderStore(tmp_path / "figures"))
    figures = FirstFigures(artifacts, ["d1.auroc", "d1.auroc_test"])
    with RunWriter(artifacts.store, folder, notes.append, QUICK) as published:
        published.follow(figures)
        for number, value in enumerate((0.7, 0.9, 0.8)):
            key = f"prober.measures.{number}"
            artifacts.write_table(key, pa.table({"metric": ["d1.auroc", "d1.auroc_test"], "value": [value, 0.95]}))
            figures.add([(f"S{number}", 2, key)])
        published.write_progress(stages=[])
        wait_until(lambda: notes)
        published.write_progress(stages=[1])
    assert notes == ["first figures, d1.auroc: S1 0.900 at layer 2, S2 0.800 at layer 2"]


def test_first_figures_stand_by_metric_and_all_have_room(tmp_path: Path) -> None:
    artifacts = Artifacts(FolderStore(tmp_path))
    figures = FirstFigures(artifacts, ["d1.auroc", "d1.auroc_test"])
    for number in range(20):
        table = pa.table({"metric": ["d1.auroc", "d1.auroc_test"], "value": [number / 40, 0.9 + number / 400]})
        artifacts.write_table(f"prober.measures.{number}", table)
        figures.add([(f"S{number}", 2, f"prober.measures.{number}")])
    best = [f"S{number}" for number in range(19, 9, -1)]
    expected = [(metric, entrant) for metric in ("d1.auroc", "d1.auroc_test") for entrant in best]
    assert [(figure["metric"], figure["entrant"]) for figure in figures.read()] == expected
