"""Damage in the object store: set aside, made again by the same run, and never more than that."""

import json
import os
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from driver.tests.conftest import SteeredArtifacts
from driver.tests.loop_bench import HASTY, A, B, Bench, C, Notes, add, job_of
from tests.waiting import PATIENCE_S

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import failure_path
from poolbench.errors import CancelledTaskError, DamagedError
from poolbench.storage.artifacts import folder_of, manifest_path, seal
from poolbench.storage.damage import objects_set_aside, set_object_aside
from poolbench.worker.taskio import TaskIO
from poolbench_driver.assemble import assemble
from poolbench_driver.loop import FoundDamageError, OutdatedPlanError
from poolbench_driver.records.folder import create_run, write_table
from poolbench_driver.results import results_digest
from poolbench_driver.stages.failure import Failure
from poolbench_driver.stages.stage import Plan

Damage = Callable[[Path], None]


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x20
    file.write_bytes(bytes(data))


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def make_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def write_garbage(file: Path) -> None:
    file.write_bytes(random.Random(0).randbytes(200))


def write_other_json(file: Path) -> None:
    file.write_text("[" * 5000)


DAMAGES: dict[str, Damage] = {
    "flipped": flip,
    "garbage": write_garbage,
    "deep": write_other_json,
    "empty": lambda file: file.write_bytes(b""),
    "gone": lambda file: file.unlink(),
    "folder": make_folder,
    "pipe": make_pipe,
}


def manifest_of(made: Bench, key: str) -> Path:
    return made.root / "store" / manifest_path(key)


def table_of(made: Bench, key: str) -> Path:
    return made.root / "store" / made.artifacts.manifest(key).files["table.arrow"].path


@pytest.fixture
def done(bench: Bench) -> Bench:
    """A finished run of A and B; C, which reads both, is still to do."""
    bench.consume()
    bench.loop(A, B).run()
    bench.service.handled.clear()
    bench.notes.lines.clear()
    return bench


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("part", [manifest_of, table_of])
def test_a_damaged_input_is_made_again_and_the_result_is_the_same(
    done: Bench, name: str, part: Callable[[Bench, str], Path]
) -> None:
    DAMAGES[name](part(done, "sum.b"))
    assert done.loop(A, B, C).run() == {}
    assert done.value("sum.c") == 6
    assert done.service.handled.count(A.task_id) == 0
    blocked = name in ("folder", "pipe") and part is manifest_of  # found when the artifact is to be committed
    assert done.service.handled.count(B.task_id) == (2 if blocked else 1)
    if (name, part) == ("gone", manifest_of):  # simply not committed any more
        return
    reported = [line for line in done.notes.lines if line.startswith("damaged: sum.b")]
    assert len(reported) == 1 and f"{B.kind} {B.task_id} makes it again" in reported[0]
    assert (done.root / "store/damaged/sum.b").is_dir()


def test_swapped_files_and_manifests_are_damaged(done: Bench) -> None:
    one, two = table_of(done, "sum.a"), table_of(done, "sum.b")
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    assert done.loop(A, B, C).run() == {}
    assert done.value("sum.c") == 6
    other = add("sum.d", "sum.b")
    shutil.copy(manifest_of(done, "sum.a"), manifest_of(done, "sum.b"))
    assert done.loop(A, B, C, other).run() == {}
    assert (done.value("sum.b"), done.value("sum.d")) == (3, 4)


def test_manifests_of_another_version_or_without_checksum_are_made_again(done: Bench) -> None:
    path = manifest_of(done, "sum.b")
    content = json.loads(path.read_text())
    del content["checksum"]
    path.write_text(json.dumps(content))
    with pytest.raises(DamagedError, match="its manifest is damaged"):
        done.artifacts.manifest("sum.b")
    path.write_bytes(seal(json.dumps(content | {"schema_version": 1})))
    with pytest.raises(DamagedError, match=r"sum\.b: its manifest has version 1, and this PoolBench reads 2;"):
        done.artifacts.manifest("sum.b")
    assert done.loop(A, B, C).run() == {}
    assert done.value("sum.b") == 3


def test_what_the_driver_put_is_put_again(done: Bench) -> None:
    flip(table_of(done, "seed.one"))
    late = add("sum.late", "seed.one")
    assert done.loop(A, B, late).run() == {}
    assert done.value("sum.late") == 2 and done.service.handled == [late.task_id, late.task_id]
    assert any("damaged: seed.one" in line and "the driver makes it again" in line for line in done.notes.lines)


def test_damage_that_nothing_reads_recomputes_nothing(done: Bench) -> None:
    flip(table_of(done, "sum.a"))
    write_garbage(manifest_of(done, "seed.one"))
    assert done.loop(A, B).run() == {}
    assert done.service.handled == [] and done.notes.lines == []


def test_damage_found_after_the_run_is_repaired_with_all_it_needs(done: Bench) -> None:
    flip(table_of(done, "sum.b"))
    flip(table_of(done, "sum.a"))
    loop = done.loop(A, B)
    loop.run()
    assert loop.repair([DamagedError("sum.b", "table.arrow does not match")]) == {}
    assert done.value("sum.b") == 3
    assert set(done.service.handled) == {A.task_id, B.task_id}


def test_an_artifact_that_is_damaged_again_and_again_fails_its_reader(done: Bench) -> None:
    original = done.service.add

    def spoil(task: object, io: object) -> None:
        original(task, io)  # type: ignore[arg-type]
        if getattr(task, "task_id", "") == B.task_id:
            flip(table_of(done, "sum.b"))

    done.service.handlers["prober.add"] = spoil
    flip(table_of(done, "sum.b"))
    failures = done.loop(A, B, C).run()
    assert set(failures) == {C.task_id}
    assert "sum.b" in failures[C.task_id].reason and "3 times" in failures[C.task_id].reason


READERS = [add(f"sum.reader{number}", "sum.b") for number in range(6)]


def failed(task: Task, **fields: str) -> Failure:
    return Failure(task.task_id, task.kind, "failed", "cannot be read", **fields)


def test_many_readers_of_one_damaged_artifact_are_all_sent_again(done: Bench) -> None:
    flip(table_of(done, "sum.b"))
    recovery = done.loop(A, B, *READERS).recovery
    for task in READERS:
        assert recovery.settle(task, failed(task, damaged="sum.b")) is None
    assert {*recovery.pending} >= {B.task_id, *(task.task_id for task in READERS)}
    assert len({info.path.split("/")[2] for info in objects_set_aside(done.artifacts.store)}) == 1
    assert done.loop(A, B, *READERS).run() == {}
    assert [done.value(f"sum.reader{number}") for number in range(6)] == [4] * 6


def test_a_reader_that_came_while_an_input_was_made_again_is_sent_again(done: Bench) -> None:
    first, late = READERS[:2]
    recovery = done.loop(A, B, *READERS).recovery
    absent = failed(late, code="not_found")
    assert recovery.settle(late, absent) == absent
    flip(table_of(done, "sum.b"))
    assert recovery.settle(first, failed(first, damaged="sum.b")) is None
    assert [recovery.settle(late, absent) for _ in range(4)] == [None, None, None, absent]


def test_what_no_task_makes_is_set_aside_and_another_plan_is_asked_for(done: Bench) -> None:
    done.artifacts.write_table("kept.states", done.artifacts.read_table("sum.a"))
    flip(table_of(done, "kept.states"))
    with pytest.raises(OutdatedPlanError, match=r"kept\.states"):
        done.loop(add("sum.late", "kept.states")).run()
    assert not done.artifacts.exists("kept.states")


def test_imported_states_are_named_with_the_command_that_imports_them(done: Bench) -> None:
    done.artifacts.write_table("kept.states", done.artifacts.read_table("sum.a"))
    flip(table_of(done, "kept.states"))
    late = add("sum.late", "kept.states")
    loop = done.loop(late)
    imported = {"kept.states": "no task makes it again: import it"}
    repairs = loop.recovery.repairs
    repairs.plan = replace(loop.plan, facts=replace(loop.plan.facts, imported=imported))
    assert "no task makes it again: import it" in loop.run()[late.task_id].reason


@pytest.mark.parametrize("name", ["garbage", "empty", "deep", "folder", "pipe"])
def test_a_failure_record_that_cannot_be_read_is_no_failure(done: Bench, name: str) -> None:
    path = done.root / "store" / failure_path(C.task_id)
    original = done.service.add

    def leave_garbage(task: object, io: object) -> None:
        path.parent.mkdir(exist_ok=True)
        if not list((done.root / "store").glob("damaged/failures/*")) and name not in ("folder", "pipe"):
            path.write_bytes(b"old")
            DAMAGES[name](path)
            raise CancelledTaskError("nothing else is recorded")
        original(task, io)  # type: ignore[arg-type]

    done.service.handlers["prober.add"] = leave_garbage
    if name in ("folder", "pipe"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"old")
        DAMAGES[name](path)
    assert done.loop(A, B, C, pace=HASTY).run() == {}
    assert done.value("sum.c") == 6


def test_two_drivers_that_meet_the_same_damage_agree(done: Bench) -> None:
    flip(table_of(done, "sum.b"))
    loops, results = [done.loop(A, B, C, pace=HASTY) for _ in range(2)], []
    threads = [threading.Thread(target=lambda loop=loop: results.append(loop.run())) for loop in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert results == [{}, {}]
    assert done.value("sum.c") == 6
    assert len({info.path.split("/")[2] for info in objects_set_aside(done.artifacts.store)}) == 1


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_task_that_misses_what_another_driver_set_aside_is_done_again(done: Bench, is_made_again: bool) -> None:
    """The driver of the task saw no damage; the other one may have made the artifact again meanwhile, or not yet."""
    add_up, times = done.service.add, count()

    def missing_once(task: Task, io: TaskIO) -> None:
        if task.task_id != C.task_id or next(times):
            return add_up(task, io)
        value = done.artifacts.read_table("sum.b")
        assert set_object_aside(done.artifacts.store, folder_of("sum.b"))
        try:
            return add_up(task, io)
        finally:
            if is_made_again:
                done.artifacts.write_table("sum.b", value)

    done.service.handlers["prober.add"] = missing_once
    assert done.loop(A, B, C).run() == {}
    assert done.value("sum.c") == 6
    assert done.service.handled.count(B.task_id) == (not is_made_again)


RUN = "run"


def flip_table(artifacts: Any, key: str, name: str = "table.arrow") -> None:
    path = artifacts.manifest(key).files[name].path
    data = bytearray(artifacts.store.get(path))
    data[len(data) // 3] ^= 1
    artifacts.store.put(path, bytes(data))


def digest_of(plan: Plan, artifacts: Any) -> str:
    return results_digest(assemble(plan, artifacts, {}, RUN)["results"])


def test_all_damage_that_rows_meet_is_named_at_once(complete: tuple[SteeredArtifacts, Any]) -> None:
    made, _ = complete
    (cells,), scores = made.plan.probes.concepts.values(), made.plan.steering.scores.concepts["contrast"]
    damaged = [next(iter(cells.measures.values())), scores["A1_mean"], made.plan.steering.unsteered.texts.texts]
    for key in damaged:
        flip_table(made.artifacts, key)
    with pytest.raises(FoundDamageError) as found:
        assemble(made.plan, made.artifacts, {}, RUN)
    assert {error.key for error in found.value.damages} == set(damaged)


def test_the_same_command_repairs_and_gives_the_same_digest(
    bench: Bench, complete: tuple[SteeredArtifacts, dict[str, pa.Table]], tmp_path: Path
) -> None:
    made, copies = complete
    before = digest_of(made.plan, made.artifacts)
    (cells,) = made.plan.probes.concepts.values()
    damaged = [*cells.measures.values(), *cells.directions.values(), *cells.scores.values()]
    for key in damaged:
        flip_table(made.artifacts, key)
    unread = next(key for key in made.plan.local if key.startswith("corpus.prompts."))  # rows need no openings
    flip_table(made.artifacts, unread)
    bench.consume()
    folder = create_run(tmp_path / "runs", made.plan.scope.config)
    write_table(folder, "results", pa.table({"x": [1]}))
    for name in ("results.parquet", "state.json", "manifest.json"):
        folder.file(name).write_bytes(b"garbage \xff")
    notes = Notes()
    assert job_of(bench, made.plan).run(folder, notes).done
    assert folder.read_state()["results_digest"] == before == results_digest(folder.read_table("results"))
    reported = [line.split(":")[1].strip() for line in notes.lines if line.startswith("damaged: ")]
    assert sorted(reported) == sorted(damaged)
    assert all(made.artifacts.read_table(key) == copies[key] for key in damaged)
    assert not (Path(made.artifacts.store.uri) / "damaged" / unread).exists()
