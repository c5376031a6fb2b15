"""watch, cancel, status and gc on a machine that has no folder of the run."""

import io
import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from driver.tests.conftest import Driver, SteeredArtifacts
from driver.tests.loop_bench import Bench, Notes, job_of
from tests.waiting import wait_until

from poolbench.contracts.wire import RUNS_FOLDER
from poolbench.errors import IntegrityError
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_driver import load
from poolbench_driver.cli.upkeep import needed_by, unneeded
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.job import Outcome
from poolbench_driver.records import Run, Runs
from poolbench_driver.records.folder import create_run, write_state
from poolbench_driver.records.record import RunRecords
from poolbench_driver.records.writer import RunWriter

pytestmark = pytest.mark.lane(name="series")

CONFIG = load_run_config(None, {"preset": "demo"})


@pytest.fixture
def elsewhere(tmp_path: Path) -> str:
    """--output of a machine that has no folder of the run."""
    return str(tmp_path / "elsewhere")


def write_record(tmp_path: Path, state: str, keys: tuple[str, ...] = ("a.b.1",), **fields: Any) -> Run:
    """Leaves the record of a run whose driver works on another machine, and its folder there."""
    folder = create_run(tmp_path / "there", CONFIG)
    with RunWriter(FolderStore(tmp_path / "store"), folder, print) as published:
        published.write_plan(CONFIG, keys)
        published.write_state(state, **fields)  # type: ignore[arg-type]
    return folder


def test_a_run_of_another_machine_is_watched_cancelled_and_listed(
    bench: Bench, complete: tuple[SteeredArtifacts, Any], driver: Driver, environment: dict[str, str], elsewhere: str
) -> None:
    """A whole run in a thread that nobody works for: the commands know nothing but its id and the store."""
    made, _ = complete
    plan = made.plan
    (cells,) = plan.probes.concepts.values()
    made.artifacts.delete(next(iter(cells.measures.values())))
    folder, notes, ended = create_run(bench.root / "there", plan.config), Notes(), list[Outcome]()
    working = threading.Thread(target=lambda: ended.append(job_of(bench, plan).run(folder, notes)))
    working.start()
    records = RunRecords(made.artifacts.store)
    wait_until(lambda: (found := records.get(folder.id)) and found.get("tasks_done") == len(plan.tasks) - 1)
    status = json.loads(driver(environment, "status", "--json", "--output", elsewhere).stdout)
    (run,) = status["runs"]
    assert (run["run"], run["state"], run["local"]) == (folder.id, "running", False)
    assert records.keys(folder.id) == plan.keys
    done = driver(environment, "cancel", folder.id, "--output", elsewhere)
    assert done.returncode == 0 and "stops within a few seconds" in done.stderr
    working.join()
    assert [each.state for each in ended] == ["cancelled"] and folder.read_state()["state"] == "cancelled"
    watched = driver(environment, "watch", folder.id, "--output", elsewhere)
    assert watched.returncode == 1 and f"cancelled: {len(plan.tasks) - 1}/{len(plan.tasks)} tasks" in watched.stdout
    again = driver(environment, "cancel", "latest", "--output", elsewhere)
    assert again.returncode == 1 and "does not run (state: cancelled)" in again.stderr
    bench.consume()  # the same command continues: the mark is gone
    assert job_of(bench, plan).run(folder, Notes()).done
    watched = driver(environment, "watch", "--output", elsewhere)
    assert watched.returncode == 0 and f"report: {folder.path}/report/index.html on " in watched.stderr
    assert RunRecords(made.artifacts.store).get(folder.id)["results_digest"]  # type: ignore[index]
    read_elsewhere(driver, environment, folder, made, Path(elsewhere))


def read_elsewhere(
    driver: Driver, environment: dict[str, str], folder: Run, made: SteeredArtifacts, elsewhere: Path
) -> None:
    """Report, compare and list a finished run on a machine that has nothing of it but the store."""
    where = ("--output", str(elsewhere))
    listed = json.loads(driver(environment, "ls", "runs", "--json", *where).stdout)
    assert [(run["id"], run["state"], run["local"]) for run in listed] == [(folder.id, "done", False)]
    done = driver(environment, "report", folder.id, *where)
    assert done.returncode == 0 and (elsewhere / folder.id / "report" / "index.html").is_file()
    for name in ("results", "failures", "curves", "details"):
        there, here = (place.file(f"{name}.parquet") for place in (folder, Run(elsewhere / folder.id)))
        assert there.read_bytes() == here.read_bytes()
    listed = json.loads(driver(environment, "ls", "runs", "--json", *where).stdout)
    assert [(run["id"], run["state"], run["local"]) for run in listed] == [(folder.id, "done", True)]
    same = driver(environment, "compare", folder.id, str(folder.path), "--check", *where)
    assert same.returncode == 0, same.stderr
    address = f"file://{environment['POOLBENCH_STORE']}/{RUNS_FOLDER}/{folder.id}"
    assert load(address, output=elsewhere.with_name("by-address")).read_state()["state"] == "done"
    store = made.artifacts.store
    files = [info.path for info in store.list(f"{RUNS_FOLDER}/{folder.id}/files/")]
    tables = [pq.read_table(io.BytesIO(store.get(path))) for path in files if path.endswith(".parquet")]
    assert len(tables) > 4 and not any(SteeredArtifacts.SECRET in str(table.to_pylist()) for table in tables)
    store.put(f"{RUNS_FOLDER}/{folder.id}/files/results.parquet", b"garbage")
    third = elsewhere.with_name("third")
    damaged = driver(environment, "leaderboard", folder.id, "--output", str(third))
    assert damaged.returncode == 1 and "results.parquet is damaged" in damaged.stderr and not list(third.iterdir())
    assert driver(environment, "gc", "--forget", folder.id, *where).returncode == 0
    assert not list(store.list(f"{RUNS_FOLDER}/"))


def test_a_run_of_another_machine_that_has_not_ended_has_no_tables(tmp_path: Path, cli: Driver, elsewhere: str) -> None:
    folder = write_record(tmp_path, "running", tasks=9)
    refused = cli("report", folder.id, "--output", elsewhere)
    assert refused.returncode == 2 and "(state: running; " in refused.stderr and not list(Path(elsewhere).iterdir())
    unknown = cli("compare", "a", "b", "--output", elsewhere)
    assert unknown.returncode == 2 and f"there are: {folder.id}" in unknown.stderr


def test_the_record_of_a_run_holds_no_text(
    bench: Bench, steered: Callable[..., SteeredArtifacts], tmp_path: Path
) -> None:
    made = steered(concepts=["toxicity"]).write(lambda *_: 0.5)
    for key in made.plan.keys:
        if not made.artifacts.exists(key):
            made.artifacts.write(key, {"x": b"1"})
    bench.artifacts = made.artifacts
    folder = create_run(tmp_path / "runs", made.plan.scope.config)
    with RunWriter(made.artifacts.store, folder, print) as published:
        published.write_plan(made.plan.scope.config, made.plan.keys)
        published.write_state("running", tasks=1)  # type: ignore[arg-type]
    store = made.artifacts.store
    files = {info.path.rpartition("/")[2]: store.get(info.path) for info in store.list("runs/")}
    assert set(files) == {"config.json", "keys.json.gz", "state.json"}
    assert not any(SteeredArtifacts.SECRET.encode() in raw for raw in files.values())
    assert set(json.loads(files["state.json"])) == {
        "state", "host", "pid", "updated_at", "heartbeat_at", "code_version", "schema_version", "tasks", "folder",
    }  # fmt: skip


def test_a_run_of_here_is_watched_without_a_cluster(
    tmp_path: Path, driver: Driver, environment: dict[str, str]
) -> None:
    folder = create_run(tmp_path / "runs", CONFIG)
    write_state(folder, "done", tasks=2, tasks_done=2)  # type: ignore[arg-type]
    cluster = ("POOLBENCH_STORE", "POOLBENCH_HTTP")
    alone = {name: value for name, value in environment.items() if not name.startswith(cluster)}
    done = driver(alone, "watch", "--output", str(tmp_path / "runs"))
    assert done.returncode == 0 and "only the folder of the run is read" in done.stderr
    refused = driver(alone, "watch", "other", "--output", str(tmp_path / "runs"))
    assert refused.returncode == 2 and "make cluster-up" in refused.stderr


def test_a_starting_run_is_cancelled_later(tmp_path: Path, cli: Driver) -> None:
    folder = create_run(tmp_path / "runs", CONFIG)
    write_state(folder, "starting")  # type: ignore[arg-type]
    done = cli("cancel", "--output", str(tmp_path / "runs"))
    assert done.returncode == 1 and "is starting" in done.stderr


def session_of(store: Path) -> Any:
    return SimpleNamespace(artifacts=Artifacts(FolderStore(store)))


def test_gc_keeps_what_runs_of_other_machines_need_and_what_was_measured_since(tmp_path: Path) -> None:
    session = session_of(tmp_path / "store")
    for key in ("a.b.1", "a.b.2", "restricted.a.b.3"):
        session.artifacts.write(key, {"x": b"1"})
    folder = write_record(tmp_path, "done", ("a.b.1", "restricted.a.b.3"))
    records = RunRecords(session.artifacts.store)
    keys = needed_by(Runs(tmp_path / "elsewhere", records).all(), session)
    assert set(unneeded(session.artifacts, keys, lambda info: True)) == {"a.b.2"}
    for further in (["a.b.2"], ["a.b.4"]):  # of two searches
        records.keep(folder.id, further)
    assert records.keys(folder.id) == {"a.b.1", "restricted.a.b.3", "a.b.2", "a.b.4"}
    records.store.put(f"{RUNS_FOLDER}/{folder.id}/further.json.gz", b"garbage")
    with pytest.raises(IntegrityError, match=r"further\.json\.gz is damaged"):
        records.keys(folder.id)
    records.keep(folder.id, ["a.b.4"])
    assert records.keys(folder.id) == {"a.b.1", "restricted.a.b.3", "a.b.4"}
    session.artifacts.store.put(f"{RUNS_FOLDER}/{folder.id}/keys.json.gz", b"garbage")
    with pytest.raises(IntegrityError, match=f"poolbench-driver gc --forget {folder.id}"):
        needed_by(Runs(tmp_path / "elsewhere", records).all(), session)


def test_gc_leaves_records_and_removes_those_that_it_shall_forget(tmp_path: Path, cli: Driver, elsewhere: str) -> None:
    options = ("gc", "--delete", "--min-age-h", "0", "--output", elsewhere)
    refused = cli(*options)
    assert refused.returncode == 2 and "has a record in the object store" in refused.stderr
    artifacts = session_of(tmp_path / "store").artifacts
    for key in ("a.b.1", "a.b.2"):
        artifacts.write(key, {"x": b"1"})
    folder = write_record(tmp_path, "running")
    done = cli(*options)
    assert done.returncode == 0 and "1 artifacts" in done.stdout and "1 runs need 1 others" in done.stdout
    assert artifacts.exists("a.b.1") and not artifacts.exists("a.b.2")
    assert len(list(artifacts.store.list(f"{RUNS_FOLDER}/"))) == 3
    running = cli("gc", "--forget", folder.id, "--output", elsewhere)
    assert running.returncode == 2 and "cancel it first" in running.stderr
    write_record(tmp_path, "done")
    assert cli("gc", "--forget", folder.id, "--output", elsewhere).returncode == 0
    assert not list(artifacts.store.list(f"{RUNS_FOLDER}/"))
    unknown = cli("gc", "--forget", folder.id, "--output", elsewhere)
    assert unknown.returncode == 2 and "no run" in unknown.stderr
    here = cli("gc", "--forget", folder.id, "--output", str(folder.path.parent))
    assert here.returncode == 2 and "remove its folder" in here.stderr
