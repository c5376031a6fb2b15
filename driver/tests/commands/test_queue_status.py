"""Both status commands with poison that waits, and garbage among the dead letters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deploy.local import apps, cluster, head, state
from tests.queue.poison import POISON, QUEUE, echo

from poolbench.queue import Broker, TaskQueue
from poolbench_driver.cli.status import status

HOSTILE = b'{"service": "\\u001b[2J", "reason": "\\u001b[31mred\\nline"}'


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskQueue:
    """Everything in the table waits, and one good task; three dead letters are none, and one is."""
    values = {"STATE": tmp_path, "STORE": tmp_path / "store", "BROKER": f"filesystem://{tmp_path}/queue"}
    for name, value in {**values, "HTTP": "http://127.0.0.1:9", "TOKEN": "x"}.items():
        monkeypatch.setenv(f"POOLBENCH_{name}", str(value))
    made = TaskQueue(Broker(f"filesystem://{tmp_path}/queue"))
    for number, (raw, _) in enumerate(POISON.values()):
        (tmp_path / "queue" / "messages" / f"{number}.{QUEUE}.msg").write_bytes(raw)
    for number, raw in enumerate([b"\xff", b"[" * 100_000, HOSTILE]):
        (tmp_path / "queue" / "dead" / f"00000-{number}.{QUEUE}.msg").write_bytes(raw)
    made.send(echo(1))
    made.bury("prober", echo(2).model_dump(mode="json"), "the \x1b[31mstore\nis away")
    return made


def test_status_of_the_driver(queue: TaskQueue, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status(tmp_path / "runs", as_json=True)
    shown = json.loads(capsys.readouterr().out)
    (prober,) = [each for each in shown["services"] if each["service"] == "prober"]
    assert (prober["waiting"], prober["not_understood"]) == (len(POISON) + 1, len(POISON))
    assert prober["dead_letters"] == 4
    assert [letter["task_id"] for letter in shown["newest_dead_letters"]] == ["", "", echo(2).task_id]
    status(tmp_path / "runs")
    printed = capsys.readouterr().out
    assert "no dead letter of ours" in printed and f"{echo(2).task_id}: the \\x1b[31mstore\\nis away" in printed
    assert "\x1b" not in printed


def test_status_of_the_cluster(queue: TaskQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve is left out: what it says of replicas has nothing to do with messages."""
    with monkeypatch.context() as patched, cluster._CONSOLE.capture() as captured:
        patched.setattr(cluster, "_living", state.new_cluster)
        patched.setattr(head, "connect", lambda running: None)
        patched.setattr(apps, "states", lambda: [apps.AppState("prober", "RUNNING", 1)])
        cluster.status(tmp_path)
    (line,) = [line for line in captured.get().splitlines() if "RUNNING" in line]
    assert line.split() == ["prober", "RUNNING", "1", str(len(POISON) + 1), str(len(POISON)), "4"]
    assert "the \\x1b[31mstore\\nis away" in captured.get().replace("\n", "")
