"""A handler's work on a task: cancelled midway, and ended by what is not an exception."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from poolbench.cancellation import check_cancelled
from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import cancel_path, failure_path
from poolbench.errors import DamagedError
from poolbench.queue.leases import FolderLeases
from poolbench.storage.artifacts import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker import taskio
from poolbench.worker.taskio import TaskIO
from poolbench.worker.worker import Worker

TASK = Task(kind="prober.double", inputs={}, outputs={"a": "doubled.a"})


class PanicError(BaseException):
    """As a panic of Rust arrives in Python."""


class OneHandler:
    """A service with one handler."""

    name = "prober"

    def __init__(self, handler: Callable[[Task, TaskIO], None]) -> None:
        self.handlers = {TASK.kind: handler}

    def routes(self, router: Any) -> None:
        """No verbs."""

    def health(self) -> dict[str, Any]:
        return {}


def _run(handler: Callable[[Task, TaskIO], None], folder: Path) -> tuple[str, Artifacts]:
    artifacts = Artifacts(FolderStore(folder / "store"))
    worker = Worker(OneHandler(handler), artifacts, FolderLeases(folder / "leases"))
    return worker.run(TASK.model_dump(mode="json")), artifacts


@pytest.mark.parametrize("panics", [True, False])
def test_what_is_no_exception_is_recorded_as_a_failure(tmp_path: Path, panics: bool) -> None:
    def handler(task: Task, io: TaskIO) -> None:
        if panics:
            raise PanicError("index out of bounds")
        sys.exit(3)

    said, artifacts = _run(handler, tmp_path)
    failure = json.loads(artifacts.store.get(failure_path(TASK.task_id)))
    assert (said, failure["code"]) == ("failed", "internal")
    assert ("PanicError: index out of bounds" if panics else "SystemExit: 3") in failure["reason"]


def test_a_cancelled_run_ends_a_task_in_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same checks that end a request end a task, in every service."""
    monkeypatch.setattr(taskio, "_LOOK_S", 0.0)
    reached: list[str] = []

    def handler(task: Task, io: TaskIO) -> None:
        check_cancelled()
        reached.append("begun")
        artifacts = Artifacts(FolderStore(tmp_path / "store"))
        artifacts.store.put(cancel_path(task.task_id), b"")
        check_cancelled()
        reached.append("ended")

    said, _ = _run(handler, tmp_path)
    assert (said, reached) == ("cancelled", ["begun"])


def test_several_tables_are_committed_or_the_first_error_is_raised(tmp_path: Path) -> None:
    roles = [f"table/{number}" for number in range(30)]
    task = Task(
        kind="prober.double", inputs={}, outputs={role: f"doubled.{number}" for number, role in enumerate(roles)}
    )
    artifacts = Artifacts(FolderStore(tmp_path / "store"))
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
