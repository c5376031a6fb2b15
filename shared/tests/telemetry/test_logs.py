"""Logs as text and as JSON, the ids that they carry, and the id of an HTTP request."""

import asyncio
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from poolbench.errors import ConfigError
from poolbench.http.border import Border, BorderLimits
from poolbench.http.gate.serve import RequestIds
from poolbench.telemetry.ids import current_ids, engine_request_id, identified, request_id_of
from poolbench.telemetry.logs import JsonFormatter, configure_logging, serve_logging

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
    assert record.pop("place").startswith("test_logs.py:")
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
