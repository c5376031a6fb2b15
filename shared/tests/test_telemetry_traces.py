"""Traces: one per task from driver to store, off by default, and without texts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.collector import Collector, collecting
from tests.servers.quiet import TasksOnly

from poolbench.contracts.tasks import Task
from poolbench.errors import ConfigError
from poolbench.queue import Broker, TaskQueue
from poolbench.queue.envelope import Message, queue_name, understand
from poolbench.queue.leases import FolderLeases
from poolbench.settings import TraceSettings
from poolbench.storage import Artifacts, open_store
from poolbench.telemetry.ids import current_ids
from poolbench.telemetry.traces import continued, is_traceparent, span, start_tracing, stop_tracing, trace_headers
from poolbench.worker.taskio import TaskIO
from poolbench.worker.worker import Worker

KIND, SECRET = "prober.double", "SECRET-PASSAGE"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Doubling(TasksOnly):
    """A service with one kind of task."""

    name = "prober"

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails
        self.handlers = {KIND: self.double}

    def double(self, task: Task, io: TaskIO) -> None:
        if self.fails:
            raise ValueError(SECRET)
        io.write_files("a", {"x": b"1"})


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as found:
        monkeypatch.setenv("POOLBENCH_TRACES", found.endpoint)
        assert start_tracing("prober")
        yield found
        stop_tracing()


def delivered(folder: Path, task: Task, *, fails: bool) -> None:
    """Send a task over a folder broker, and work on what arrives."""
    broker = Broker(f"filesystem://{folder}/queue")
    TaskQueue(broker).send(task)
    (raw,) = broker.spool().waiting(queue_name("prober"))
    assert isinstance(raw, bytes)
    message = understand(raw)
    assert isinstance(message, Message)
    again = understand(json.dumps(message.envelope("q")).encode())
    assert isinstance(again, Message) and again == message  # as a retry sends it
    worker = Worker(Doubling(fails=fails), Artifacts(open_store(str(folder / "store"))), FolderLeases(folder / "l"))
    with continued(message.traceparent):
        worker.run(message.task)


def test_a_task_is_one_trace_from_the_sender_to_the_store(collector: Collector, tmp_path: Path) -> None:
    task = Task(kind=KIND, run_id="a-run", outputs={"a": "b.1"})
    delivered(tmp_path, task, fails=False)
    assert trace_headers() == {} and "trace_id" not in current_ids()
    stop_tracing()
    (sent,), (worked,), puts = (collector.named(name) for name in (f"send {KIND}", KIND, "store put"))
    assert sent.parent_id == "" and worked.parent_id == sent.span_id and len(puts) == 2
    assert {worked.trace_id, *(put.trace_id for put in puts)} == {sent.trace_id}
    assert {put.parent_id for put in puts} == {worked.span_id}
    assert worked.attributes == {"run_id": "a-run", "task_id": task.task_id}
    assert (worked.service, worked.error) == ("poolbench-prober", "")


def test_a_failure_is_marked_without_its_message(collector: Collector, tmp_path: Path) -> None:
    delivered(tmp_path, Task(kind=KIND, outputs={"a": "b.2"}), fails=True)
    with pytest.raises(ZeroDivisionError), span("division"):
        raise ZeroDivisionError(SECRET)
    stop_tracing()
    assert collector.named("division")[0].error == "ZeroDivisionError"
    assert collector.named(KIND) and SECRET.encode() not in b"".join(collector.raw)


@pytest.mark.parametrize(
    "sent", [None, "", "x", PARENT.upper(), PARENT.replace("00-", "01-", 1), f"00-{'0' * 32}-b7ad6b7169203331-01", 7]
)
def test_a_malformed_header_is_ignored(collector: Collector, sent: Any) -> None:
    assert not is_traceparent(sent)
    with continued(sent), span("alone"):
        assert is_traceparent(trace_headers()["traceparent"]) and len(current_ids()["trace_id"]) == 32
    stop_tracing()
    assert collector.named("alone")[0].parent_id == ""


def test_a_trace_of_another_process_is_continued(collector: Collector) -> None:
    with continued(PARENT), span("part"):
        pass
    stop_tracing()
    (part,) = collector.named("part")
    assert (part.trace_id, part.parent_id) == tuple(PARENT.split("-")[1:3])


def test_traces_are_off_by_default_and_import_nothing() -> None:
    code = "import sys; from poolbench.telemetry.traces import continued, span, start_tracing, trace_headers\n"
    code += f"assert not start_tracing('x') and trace_headers() == {{}}\nwith continued({PARENT!r}), span('x'): pass\n"
    code += "print(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_an_address_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLBENCH_TRACES", "collector:4317")
    with pytest.raises(ConfigError, match="POOLBENCH_TRACES"):
        TraceSettings.load()
