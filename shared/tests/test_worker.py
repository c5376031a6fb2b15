"""One task's way through a worker: skip, lease, commit, fail, retry, cancel, and its turn beside requests."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.servers.quiet import TasksOnly

from poolbench.cancellation import check_cancelled
from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import cancel_path, failure_path, progress_path
from poolbench.errors import CellError, DamagedError, InputError, StoreError
from poolbench.queue.leases import FolderLeases
from poolbench.storage.artifacts import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker import taskio
from poolbench.worker import turns as module
from poolbench.worker.service import Handler
from poolbench.worker.taskio import TaskIO, peak_resident_bytes
from poolbench.worker.turns import Turns
from poolbench.worker.worker import RefusedTaskError, RetryTaskError, Worker

KIND = "prober.double"


class DoublingService(TasksOnly):
    """Doubles a column; small, and real all through."""

    name = "prober"

    def __init__(self, handler: Handler | None = None) -> None:
        self.made: list[str] = []
        self.handlers: dict[str, Handler] = {KIND: handler or self.double}

    def double(self, task: Task, io: TaskIO) -> None:
        for role in sorted(io.missing):
            values = io.table("numbers").column("x").to_pylist()
            io.write_table(role, pa.table({"x": [2 * value for value in values]}), meta={"factor": 2})
            self.made.append(role)


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    store = Artifacts(FolderStore(tmp_path / "store"))
    store.write_table("corpus.numbers.1", pa.table({"x": [1, 2, 3]}))
    return store


@pytest.fixture
def leases(tmp_path: Path) -> FolderLeases:
    return FolderLeases(tmp_path / "leases")


TASK = Task(kind=KIND, inputs={"numbers": "corpus.numbers.1"}, outputs={"a": "doubled.a", "b": "doubled.b"})
MESSAGE = TASK.model_dump(mode="json")


def _failure(artifacts: Artifacts, task: Task = TASK) -> dict[str, Any]:
    return dict(json.loads(artifacts.store.get(failure_path(task.task_id))))


def _raising(error: Exception) -> Callable[[Task, TaskIO], None]:
    def handler(task: Task, io: TaskIO) -> None:
        raise error

    return handler


def test_outputs_are_committed_with_what_was_measured(artifacts: Artifacts, leases: FolderLeases) -> None:
    assert Worker(DoublingService(), artifacts, leases).run(MESSAGE) == "done"
    assert artifacts.read_table("doubled.a").column("x").to_pylist() == [2, 4, 6]
    manifest = artifacts.manifest("doubled.b")
    assert manifest.meta == {"factor": 2}
    assert manifest.producer["task_id"] == TASK.task_id
    assert manifest.producer["wall_s"] >= 0 and manifest.producer["peak_bytes"] > 1 << 20
    assert not leases.alive(TASK.task_id)


def test_only_missing_outputs_are_made(artifacts: Artifacts, leases: FolderLeases) -> None:
    artifacts.write_table("doubled.a", pa.table({"x": [0]}))
    service = DoublingService()
    worker = Worker(service, artifacts, leases)
    assert worker.run(MESSAGE) == "done"
    assert service.made == ["b"]
    assert worker.run(MESSAGE) == "skipped"
    assert artifacts.read_table("doubled.a").column("x").to_pylist() == [0]


def test_a_leased_task_is_left_alone(artifacts: Artifacts, leases: FolderLeases) -> None:
    lease = leases.acquire(TASK.task_id)
    assert lease is not None
    with lease:
        assert Worker(DoublingService(), artifacts, leases).run(MESSAGE) == "leased"
    assert not artifacts.exists("doubled.a")


def test_a_user_error_is_recorded_and_cleared_by_success(artifacts: Artifacts, leases: FolderLeases) -> None:
    failing = DoublingService(_raising(CellError("too_few", "3 passages, at least 20 needed")))
    assert Worker(failing, artifacts, leases).run(MESSAGE, final=False) == "failed"
    record = _failure(artifacts)
    assert (record["status"], record["retryable"], record["attempt"]) == ("too_few", False, 1)
    assert record["reason"] == "3 passages, at least 20 needed"
    assert Worker(DoublingService(), artifacts, leases).run(MESSAGE) == "done"
    assert not artifacts.store.exists(failure_path(TASK.task_id))


def test_infrastructure_errors_are_recorded_at_last(artifacts: Artifacts, leases: FolderLeases) -> None:
    worker = Worker(DoublingService(_raising(StoreError("the store is away"))), artifacts, leases)
    with pytest.raises(RetryTaskError, match="the store is away"):
        worker.run(MESSAGE, attempt=1, final=False)
    assert not artifacts.store.exists(failure_path(TASK.task_id))
    with pytest.raises(RetryTaskError):
        worker.run(MESSAGE, attempt=3, final=True)
    record = _failure(artifacts)
    assert (record["retryable"], record["attempt"]) == (True, 3)


def test_a_task_is_done_although_its_records_cannot_be_written(
    artifacts: Artifacts, leases: FolderLeases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress, and the removal of what an earlier attempt has left."""
    put, refused = artifacts.store.put, []

    def full(path: str, *data: Any, **options: Any) -> Any:
        if path != progress_path(TASK.task_id):
            return put(path, *data, **options)
        refused.append(path)
        raise StoreError("no space left")

    def away(path: str) -> None:
        refused.append(path)
        raise StoreError("it does not answer")

    service = DoublingService()

    def reporting(task: Task, io: TaskIO) -> None:
        io.progress(1, 2)
        service.double(task, io)

    monkeypatch.setattr(artifacts.store, "put", full)
    monkeypatch.setattr(artifacts.store, "delete", away)
    assert Worker(DoublingService(reporting), artifacts, leases).run(MESSAGE) == "done"
    assert refused == [progress_path(TASK.task_id), failure_path(TASK.task_id)]


def test_a_defect_or_a_forgotten_output_fails_its_task_only(artifacts: Artifacts, leases: FolderLeases) -> None:
    worker = Worker(DoublingService(_raising(ZeroDivisionError("division by zero"))), artifacts, leases)
    assert worker.run(MESSAGE, final=False) == "failed"
    assert _failure(artifacts)["reason"] == "ZeroDivisionError: division by zero"
    assert not leases.alive(TASK.task_id)
    assert Worker(DoublingService(lambda task, io: None), artifacts, leases).run(MESSAGE) == "failed"
    assert "a, b" in _failure(artifacts)["reason"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"kind": "prober.doubel"}, "did you mean prober.double"),
        ({"schema_version": 99}, "schema version 99"),
        ({"outputs": {}}, "malformed"),
    ],
)
def test_messages_that_are_none_of_the_service_are_refused(
    artifacts: Artifacts, leases: FolderLeases, change: dict[str, Any], expected: str
) -> None:
    with pytest.raises(RefusedTaskError, match=expected):
        Worker(DoublingService(), artifacts, leases).run({**MESSAGE, **change})
    assert expected in _failure(artifacts)["reason"]


def test_a_wrong_role_names_the_right_ones(artifacts: Artifacts) -> None:
    with pytest.raises(InputError, match="has no input 'nombers'; it has numbers"):
        TaskIO(TASK, artifacts).table("nombers")


def test_a_cancelled_task_is_dropped_without_a_failure(artifacts: Artifacts, leases: FolderLeases) -> None:
    def cancelled_midway(task: Task, io: TaskIO) -> None:
        artifacts.store.put(cancel_path(task.task_id), b"{}")
        io.check_cancelled()

    assert Worker(DoublingService(cancelled_midway), artifacts, leases).run(MESSAGE) == "cancelled"
    service = DoublingService()
    assert Worker(service, artifacts, leases).run(MESSAGE) == "cancelled"
    assert (service.made, leases.alive(TASK.task_id)) == ([], False)
    assert not artifacts.store.exists(failure_path(TASK.task_id))
    artifacts.store.delete(cancel_path(TASK.task_id))
    assert Worker(service, artifacts, leases).run(MESSAGE) == "done"


class PanicError(BaseException):
    """As a panic of Rust arrives in Python."""


@pytest.mark.parametrize("panics", [True, False])
def test_what_is_no_exception_is_recorded_as_a_failure(
    artifacts: Artifacts, leases: FolderLeases, panics: bool
) -> None:
    def handler(task: Task, io: TaskIO) -> None:
        if panics:
            raise PanicError("index out of bounds")
        sys.exit(3)

    assert Worker(DoublingService(handler), artifacts, leases).run(MESSAGE) == "failed"
    failure = _failure(artifacts)
    assert failure["code"] == "internal"
    assert ("PanicError: index out of bounds" if panics else "SystemExit: 3") in failure["reason"]


def test_a_cancelled_run_ends_a_task_in_work(
    artifacts: Artifacts, leases: FolderLeases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same checks that end a request end a task, in every service."""
    monkeypatch.setattr(taskio, "_LOOK_S", 0.0)
    reached: list[str] = []

    def handler(task: Task, io: TaskIO) -> None:
        check_cancelled()
        reached.append("begun")
        artifacts.store.put(cancel_path(task.task_id), b"")
        check_cancelled()
        reached.append("ended")

    assert Worker(DoublingService(handler), artifacts, leases).run(MESSAGE) == "cancelled"
    assert reached == ["begun"]


def test_several_tables_are_committed_or_the_first_error_is_raised(artifacts: Artifacts, tmp_path: Path) -> None:
    roles = [f"table/{number}" for number in range(30)]
    task = Task(kind=KIND, inputs={}, outputs={role: f"doubled.{number}" for number, role in enumerate(roles)})
    io = TaskIO(task, artifacts)
    io.write_tables({role: pa.table({"x": [number]}) for number, role in enumerate(roles)}, {"width": 1})
    assert not io.missing
    assert [artifacts.read_table(f"doubled.{number}")["x"].to_pylist() for number in range(30)] == [
        [n] for n in range(30)
    ]
    assert artifacts.manifest("doubled.3").meta == {"width": 1}
    (tmp_path / "store" / "artifacts" / "doubled.7" / "manifest.json").unlink()
    (tmp_path / "store" / "artifacts" / "doubled.7" / "manifest.json").mkdir()
    again = TaskIO(task, artifacts)
    assert again.missing == {"table/7"}
    with pytest.raises(DamagedError, match=r"doubled\.7"):
        again.write_tables({role: pa.table({"x": [0]}) for role in roles[5:9]})
    assert again.missing == {"table/7"}


PATIENCE_S = 300.0


def _request(turns: Turns, order: list[str]) -> threading.Thread:
    """Start a request, and return when it waits for its turn."""

    def ask() -> None:
        with turns.request():
            order.append("request")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    waits = threading.Event()
    while not turns._num_requests and thread.is_alive():
        waits.wait(0.005)
    return thread


def test_a_request_waits_for_one_step_of_a_task() -> None:
    turns, order = Turns(), list[str]()
    with turns.task():
        order.append("step")
        asked = _request(turns, order)
        assert order == ["step"]
        check_cancelled()  # between two steps
        order.append("step")
    asked.join(PATIENCE_S)
    assert order == ["step", "request", "step"]


def test_a_task_waits_for_the_requests_before_it() -> None:
    turns, order = Turns(), list[str]()
    with turns.request():
        asked = _request(turns, order)

        def work() -> None:
            with turns.task():
                order.append("task")

        task = threading.Thread(target=work, daemon=True)
        task.start()
    asked.join(PATIENCE_S)
    task.join(PATIENCE_S)
    assert order == ["request", "task"]


def test_a_turn_is_free_after_an_error_and_after_some_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()
    for turn in (turns.request, turns.task, turns.request):
        with pytest.raises(ValueError), turn():
            raise ValueError
    with turns.task():
        pass
    monkeypatch.setattr(module, "_PATIENCE_S", 0.01)
    turns = Turns()
    turns._num_requests = 1  # one that never gets its turn
    with turns.task():
        check_cancelled()


def test_the_memory_of_a_replica_counts_what_it_has_started() -> None:
    before = peak_resident_bytes()
    hold = "import sys; held = bytearray(80_000_000); print('held', flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", hold], **pipes) as child:  # type: ignore[call-overload]
        assert child.stdout.readline() == b"held\n"
        assert peak_resident_bytes() >= before + 80_000_000
        child.stdin.close()
