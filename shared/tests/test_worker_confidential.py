"""A restricted task that fails leaves no trace of what it worked on: log, failure, dead letter, queue, progress."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from poolbench.contracts.tasks import Task
from poolbench.errors import CellError, InputError, StoreError
from poolbench.queue import Broker, TaskQueue
from poolbench.queue.leases import FolderLeases
from poolbench.storage import NO_ACCESS, Artifacts, open_store
from poolbench.telemetry.logs import JsonFormatter
from poolbench.worker.confidential import WITHHELD, confidential
from poolbench.worker.taskio import TaskIO
from poolbench.worker.worker import RefusedTaskError, RetryTaskError, Worker

LIBRARIES = ("transformers", "vllm", "poolbench_scorer")
SECRET, KEY = "SECRET-PASSAGE", "restricted.corpus.passages.1"
TASK = Task(kind="steerer.generate", inputs={"passages": KEY}, outputs={"texts": "restricted.steerer.generate.1"})


class Quoting:
    """Quotes the passage wherever a library might, and fails with it on its lips."""

    name = "steerer"

    def __init__(self, error: Callable[[str], Exception]) -> None:
        self.error = error
        self.handlers = {"steerer.generate": self.generate}

    def generate(self, task: Task, io: TaskIO) -> None:
        text = io.table("passages")["text"][0].as_py()
        io.progress(1, 2, text)
        logging.getLogger("transformers").warning("cannot tokenise %r", text)
        logging.getLogger("poolbench_scorer").error("text: " + text, extra={"passage": text})
        warnings.warn(f"long: {text}", stacklevel=1)
        try:
            json.loads(text)
        except ValueError:
            logging.getLogger("vllm").exception(text, stack_info=True)
        try:
            raise ValueError(text)
        except ValueError as cause:
            raise self.error(f"passage: {text}") from cause

    def routes(self, router: Any) -> None:
        """No verbs."""

    def health(self) -> dict[str, Any]:
        return {}


class Lines(logging.Handler):
    """Keeps every record as a formatter writes it, traceback included."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.json: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter("%(name)s %(filename)s %(message)s").format(record) + repr(record.args))
        self.json.append(JsonFormatter("steerer").format(record))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """All records, whatever earlier tests of this process, and libraries that they imported, made of the loggers."""
    handler, loggers = Lines(), [logging.getLogger(name) for name in ("", *LIBRARIES)]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        monkeypatch.setattr(logger, "propagate", True)  # transformers and vLLM, once imported, switch it off
        monkeypatch.setattr(logger, "disabled", False)
        logger.setLevel(logging.DEBUG)
    logging.getLogger().addHandler(handler)
    logging.captureWarnings(False)  # as long as it is on, switching it on again does nothing
    logging.captureWarnings(True)
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # else a warning is shown once per process
        yield handler.lines
        assert handler.json and SECRET not in "\n".join(handler.json)
    logging.captureWarnings(False)
    logging.getLogger().removeHandler(handler)
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    made = Artifacts(open_store(str(tmp_path / "store")))
    made.write_table(KEY, pa.table({"text": [SECRET]}))
    return made


def everything_outside(root: Path) -> str:
    """All bytes of store, queue and leases but those below ``restricted/``."""
    files = [file for file in root.rglob("*") if file.is_file() and "restricted" not in file.relative_to(root).parts]
    return "\n".join(file.read_bytes().decode("utf-8", "replace") for file in files)


def failure(artifacts: Artifacts) -> dict[str, Any]:
    return dict(json.loads(artifacts.store.get(f"failures/{TASK.task_id}.json")))


@pytest.mark.parametrize("error", [InputError, RuntimeError, lambda text: CellError("too_few", text), MemoryError])
def test_a_failing_restricted_task_leaves_no_trace_of_its_passages(
    artifacts: Artifacts, tmp_path: Path, log: list[str], error: Callable[[str], Exception]
) -> None:
    worker = Worker(Quoting(error), artifacts, FolderLeases(tmp_path / "leases"))
    queue = TaskQueue(Broker(f"filesystem://{tmp_path}/queue"))
    queue.send(TASK)
    message = TASK.model_dump(mode="json")
    try:
        worker.run(message)
    except RetryTaskError as raised:  # what the consumer buries when the last delivery has failed
        assert raised.__cause__ is None and raised.__context__ is None
        queue.bury("steerer", message, str(raised))
    assert {line.partition(" ")[0] for line in log} >= {*LIBRARIES, "py.warnings", "poolbench.task"}
    assert SECRET not in "\n".join(log)
    assert SECRET not in everything_outside(tmp_path)
    record = failure(artifacts)
    assert "withheld" in record["reason"] and "test_worker_confidential.py" in record["reason"]
    assert record["status"] == ("too_few" if "too_few" in record["code"] else "failed")


def test_a_public_message_is_shown(artifacts: Artifacts, tmp_path: Path) -> None:
    """An operator has to know that the store is away, or that a service lacks the credentials."""
    leases, message = FolderLeases(tmp_path / "leases"), TASK.model_dump(mode="json")
    service = Quoting(lambda _: StoreError("the store is away"))
    with pytest.raises(RetryTaskError, match="the store is away"):
        Worker(service, artifacts, leases).run(message)
    without = Artifacts(open_store(str(tmp_path / "store"), NO_ACCESS))
    assert Worker(service, without, leases).run(message) == "failed"
    record = failure(artifacts)
    assert (record["code"], record["status"]) == ("restricted", "restricted")
    assert "POOLBENCH_RESTRICTED_STORE" in record["reason"]


@pytest.mark.parametrize("change", [{"restricted": False}, {"schema_version": 99}, {"params": SECRET}, {"outputs": {}}])
def test_a_message_is_known_as_restricted_by_its_keys(
    artifacts: Artifacts, tmp_path: Path, log: list[str], change: dict[str, Any]
) -> None:
    message = {**TASK.model_dump(mode="json"), **change}
    worker = Worker(Quoting(InputError), artifacts, FolderLeases(tmp_path / "leases"))
    with suppress(RefusedTaskError):  # a changed key alone is not a reason to refuse the task
        assert worker.run(message) == "failed"
    assert SECRET not in "\n".join(log) and SECRET not in json.dumps(failure(artifacts))


def test_others_log_as_ever_before_and_after(log: list[str]) -> None:
    library = logging.getLogger("some.library")
    library.info("before %s", 1)
    with confidential(True), confidential(True):
        library.info("during %s", 2)
    library.info("after %s", 3)
    with confidential(False):
        library.info("open %s", 4)
    messages = [line.split(" ", 2)[2] for line in log]
    assert [line[: len(WITHHELD)] for line in messages] == ["before 1(1,)", WITHHELD, "after 3(3,)", "open 4(4,)"]
