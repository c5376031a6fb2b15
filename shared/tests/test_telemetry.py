"""Instruments, traces and logs: bounded, without texts, off by default, with the ids of the work that they are of."""

import asyncio
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from tests.servers.collector import Collector, collecting
from tests.servers.quiet import TasksOnly

from poolbench.contracts.tasks import Task
from poolbench.errors import AccessDeniedError, BrokerError, ConfigError, NotFoundError, StoreError
from poolbench.http.border import Border, BorderLimits
from poolbench.http.gate.serve import RequestIds
from poolbench.queue import Broker, TaskQueue
from poolbench.queue.leases import FolderLeases
from poolbench.queue.messages import Message, queue_name, understand
from poolbench.queue.monitor import QueueMonitor
from poolbench.statuses import TaskOutcome
from poolbench.storage import Artifacts, open_store
from poolbench.telemetry import Instrument, record_to
from poolbench.telemetry.catalog import INSTRUMENTS, QUEUE_MESSAGES, STORE_SECONDS, TASKS
from poolbench.telemetry.ids import current_ids, engine_request_id, identified, request_id_of
from poolbench.telemetry.instruments import MAX_VALUES, OTHER, Histogram, Label, RaySink
from poolbench.telemetry.logs import JsonFormatter, configure_logging, serve_logging
from poolbench.telemetry.traces import continued, is_traceparent, span, start_tracing, stop_tracing, trace_headers
from poolbench.worker.taskio import TaskIO
from poolbench.worker.worker import RefusedTaskError, RetryTaskError, Worker

KIND = "prober.double"
IDS = ("run", "run_id", "task_id", "request", "request_id", "key", "path", "text", "concept", "host", "pid", "address")


class Kept:
    """A sink that keeps every value by instrument and labels."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], list[float]] = {}

    def record(self, instrument: Instrument, value: float, labels: Mapping[str, str]) -> None:
        self.values.setdefault((instrument.name, *labels.values()), []).append(value)

    def total(self, name: str, *labels: str) -> float:
        """Return the sum of the values with these labels."""
        return sum(self.values.get((f"poolbench_{name}", *labels), ()))


@pytest.fixture
def kept() -> Iterator[Kept]:
    sink = Kept()
    before = record_to(sink)
    yield sink
    record_to(before)


class Doubling(TasksOnly):
    """A service with one kind of task, whose handler is given."""

    name = "prober"

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.handlers = {KIND: self.double}

    def double(self, task: Task, io: TaskIO) -> None:
        if self.error is not None:
            raise self.error
        for role in sorted(io.missing):
            io.write_files(role, {"a": b"1234"})


def worker(folder: Path, error: Exception | None = None) -> Worker:
    """A worker on a folder store."""
    return Worker(Doubling(error), Artifacts(open_store(str(folder / "store"))), FolderLeases(folder / "leases"))


def message(kind: str = KIND) -> dict[str, Any]:
    return Task(kind=kind, outputs={"a": f"{kind}.1"}).model_dump(mode="json")


def test_the_table_is_consistent_and_no_label_holds_an_id() -> None:
    names = [series for instrument in INSTRUMENTS for series in instrument.series]
    assert len(names) == len(set(names))
    for instrument in INSTRUMENTS:
        assert re.fullmatch(r"poolbench_[a-z_]+", instrument.name) and not instrument.name.endswith("_total")
        assert instrument.summary.endswith(".") and instrument.unit
        if isinstance(instrument, Histogram):
            assert list(instrument.buckets) == sorted(set(instrument.buckets)) and instrument.buckets[0] > 0
    assert not {label.name for instrument in INSTRUMENTS for label in instrument.labels} & set(IDS)


def test_labels_are_bounded() -> None:
    listed = Label("a", "listed", ("x", "y"))
    assert [listed.bounded(value) for value in ("x", "z", "")] == ["x", OTHER, OTHER]
    free = Label("b", "free")
    assert free.bounded("Any text of a client") == free.bounded("x" * 65) == OTHER
    assert [free.bounded(f"v{number}") for number in range(MAX_VALUES)] == [f"v{n}" for n in range(MAX_VALUES)]
    assert (free.bounded("one-too-many"), free.bounded("v3")) == (OTHER, "v3")


def test_nothing_is_recorded_and_nothing_imported_by_default() -> None:
    code = "import sys, poolbench.telemetry as t; from poolbench.telemetry.catalog import TASKS; "
    code += "TASKS.add(service='prober', kind='x', outcome='done'); print('ray' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
    code = "import sys; from poolbench.telemetry.traces import continued, span, start_tracing, trace_headers\n"
    code += f"assert not start_tracing('x') and trace_headers() == {{}}\nwith continued({PARENT!r}), span('x'): pass\n"
    code += "print(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_deliveries_are_counted_by_outcome(kept: Kept, tmp_path: Path) -> None:
    working = worker(tmp_path)
    assert [working.run(message()), working.run(message())] == [TaskOutcome.DONE, TaskOutcome.SKIPPED]
    with pytest.raises(RefusedTaskError):
        working.run(message("prober.unheard"))
    away = worker(tmp_path / "b", StoreError("away"))
    for final in (False, True):
        with pytest.raises(RetryTaskError):
            away.run(message(), final=final)
    assert worker(tmp_path / "c", ValueError("x")).run(message()) == TaskOutcome.FAILED
    found = {labels[2:]: sum(values) for labels, values in kept.values.items() if labels[0] == TASKS.name}
    kinds = {("done", 1), ("skipped", 1), ("retried", 1), ("failed", 2)}
    assert found == {(KIND, outcome): count for outcome, count in kinds} | {(OTHER, "refused"): 1}
    assert len(kept.values["poolbench_task_seconds", "prober", KIND]) == 3  # done, and twice failed
    assert kept.values["poolbench_tasks_running", "prober"] == [1, 0] * 6


def test_store_operations_are_timed_and_a_missing_object_is_no_error(kept: Kept, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put("a", b"12345")
    store.put("b", b"123")
    assert store.get("a") == b"12345" and len(list(store.list())) == 2
    with pytest.raises(NotFoundError):
        store.get("none")
    assert kept.total("store_bytes", "folder", "put") == 8 and kept.total("store_bytes", "folder", "get") == 5
    timed = {labels[2]: len(values) for labels, values in kept.values.items() if labels[0] == STORE_SECONDS.name}
    assert timed == {"put": 2, "get": 2, "list": 1}
    (tmp_path / "a").chmod(0)
    if not _reads_everything(tmp_path / "a"):
        with pytest.raises(AccessDeniedError):
            store.get("a")
    store.put("dir/x", b"")
    with pytest.raises(StoreError):
        store.put("dir", b"")
    assert sum(sum(v) for labels, v in kept.values.items() if labels[0] == "poolbench_store_errors") >= 1


def _reads_everything(file: Path) -> bool:
    try:
        return bool(file.read_bytes())
    except PermissionError:
        return False


def test_queues_are_measured(kept: Kept, tmp_path: Path) -> None:
    url = f"filesystem://{tmp_path}/queue"
    queue = TaskQueue(Broker(url))
    queue.send(Task.model_validate(message()))
    queue.bury("scorer", {}, "no task")
    assert 0 <= queue.oldest_s("prober") < 600 and queue.oldest_s("pooler") == 0
    monitor = QueueMonitor(url)
    monitor.measure()
    assert (kept.total("queue_messages", "prober"), kept.total("queue_messages", "pooler")) == (1, 0)
    assert kept.total("dead_letters", "scorer") == 1 and kept.total("queue_oldest_seconds", "prober") >= 0
    assert ("poolbench_broker_seconds", "folder", "send") in kept.values
    monitor.start()
    monitor.stop()


def test_a_broker_that_is_away_is_counted(kept: Kept) -> None:
    with pytest.raises(BrokerError):
        TaskQueue(Broker("redis://127.0.0.1:1/0")).depth("prober")
    assert kept.total("broker_errors", "redis", "count") == 1


def test_measuring_never_stops_work(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = RaySink()
    monkeypatch.setattr(sink, "_make", lambda instrument: object())
    with caplog.at_level(logging.WARNING, "poolbench.telemetry"):
        for _ in range(3):
            sink.record(QUEUE_MESSAGES, 1, {"service": "prober"})
    assert len(caplog.records) == 1


SECRET = "SECRET-PASSAGE"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


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
    received = understand(raw)
    assert isinstance(received, Message)
    assert understand(received.encode()) == received  # as a retry sends it
    with continued(received.traceparent):
        worker(folder, ValueError(SECRET) if fails else None).run(received.task)


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


LOG = logging.getLogger("poolbench.test")
SAFE = "Ab9._:-" * 18


@pytest.fixture
def json_logs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Logs of this process as JSON, on what is standard error during the test."""
    root, own = logging.getLogger(), logging.getLogger("poolbench")
    before = list(root.handlers), root.level, own.level
    monkeypatch.setenv("POOLBENCH_LOG_FORMAT", "json")
    configure_logging("prober")
    yield
    logging.captureWarnings(False)
    root.handlers[:], root.level, own.level = before


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The records on standard error."""
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_json_record_has_the_ids_of_its_work_and_is_written_once(
    json_logs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with identified(run_id="demo-1", task_id="ab12", request_id=""):
        LOG.info("%d outputs\nto make é", 3, extra={"passage": "SECRET"})
    (record,) = written(capsys)
    assert record.pop("time").endswith("+00:00") and isinstance(record.pop("pid"), int)
    assert record.pop("place").startswith("test_telemetry.py:")
    assert record == {
        "level": "INFO",
        "logger": "poolbench.test",
        "message": "3 outputs\nto make é",
        "service": "prober",
        "run_id": "demo-1",
        "task_id": "ab12",
    }
    try:
        raise ValueError("two\nlines")
    except ValueError:
        LOG.exception("failed")
    (record,) = written(capsys)
    assert record["error"] == "ValueError" and "two\nlines" in record["traceback"]
    logging.getLogger().addHandler(logging.StreamHandler(sys.stderr))  # as a library does
    configure_logging("prober")
    LOG.info("once")
    assert [record["message"] for record in written(capsys)] == ["once"]


def test_text_names_the_ids_at_the_end() -> None:
    code = "import logging; from poolbench.telemetry.logs import configure_logging as c; c(); "
    code += "from poolbench.telemetry.ids import identified\n"
    code += "with identified(task_id='ab'): logging.getLogger('x').info('hello')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip().endswith("INFO x hello [task_id=ab]")


def test_another_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert serve_logging() == {"encoding": "TEXT"}
    monkeypatch.setenv("POOLBENCH_LOG_FORMAT", "xml")
    with pytest.raises(ConfigError, match=r"POOLBENCH_LOG_FORMAT is 'xml'.*'text' or 'json'"):
        configure_logging()


def test_a_formatter_needs_neither_a_service_nor_unicode() -> None:
    record = logging.makeLogRecord({"msg": "m", "levelname": "INFO", "name": "n"})
    assert "service" not in json.loads(JsonFormatter().format(record))
    line = JsonFormatter().format(logging.makeLogRecord({"msg": "half of a pair: \ud800"}))
    assert line.isascii() and json.loads(line)["message"].endswith("\ud800")


def test_ids_follow_the_work() -> None:
    async def inner() -> dict[str, str]:
        return dict(current_ids())

    async def outer() -> dict[str, str]:
        with identified(request_id="r"):
            return await asyncio.create_task(inner())

    assert asyncio.run(outer()) == {"request_id": "r"}
    with identified(task_id="t"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: dict(current_ids())).result() == {}  # a new thread is other work
        assert engine_request_id().startswith("t-")
        with identified(request_id="r"):
            assert engine_request_id().startswith("r-") and engine_request_id() != engine_request_id()
    assert "-" not in engine_request_id()


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ([b"abc"], "abc"),
        ([SAFE.encode()], SAFE),
        ([b""], ""),
        ([b"x" * 129], ""),
        ([b"a b"], ""),
        ([b'a"b'], ""),
        ([b"a\nb"], ""),
        ([b"\xff"], ""),
        ([b"one", b"two"], ""),
        ([], ""),
    ],
)
def test_only_one_safe_id_of_a_client_is_kept(sent: list[bytes], kept: str) -> None:
    request_id = request_id_of([(b"X-Request-Id", value) for value in sent])
    assert request_id == kept if kept else re.fullmatch("[0-9a-f]{32}", request_id)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the id that the service sees in its header, and the one that its logs have."""
    seen = Request(scope).headers["x-request-id"]
    headers = {"X-Request-ID": "of the service"}
    await PlainTextResponse(f"{seen} {current_ids()['request_id']}", headers=headers)(scope, receive, send)


@pytest.mark.parametrize("sent", [None, "mine-1", "not safe"])
def test_every_response_has_the_id_of_its_request(sent: str | None) -> None:
    client = TestClient(RequestIds(Border(echo, BorderLimits())))
    answer = client.get("/a", headers={} if sent is None else {"x-request-id": sent})
    (found,) = answer.headers.get_list("X-Request-ID")
    assert answer.text == f"{found} {found}"
    assert (found == "mine-1") == (sent == "mine-1") and len(found) in (6, 32)
