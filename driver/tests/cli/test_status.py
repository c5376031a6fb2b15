"""Both status commands: watched, with poison that waits, and garbage among the dead letters."""

import json
import os
import pty
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from driver.tests.conftest import Driver
from tests.poison import POISON, QUEUE, echo
from tests.servers.services import cluster_environment

from poolbench.queue import Broker, TaskQueue
from poolbench_driver.cli import status as of_cli
from poolbench_driver.cli.status import status

COMMAND = [sys.executable, "-m", "poolbench_driver.cli", "status", "--watch", "--interval-s", "0.2"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A cluster of which only the folders exist."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POOLBENCH_")}
    return {**kept, **cluster_environment("http://127.0.0.1:9", tmp_path), "TERM": "xterm", "COLUMNS": "120"}


@pytest.mark.parametrize("form", ["table", "--json"])
def test_to_a_pipe_each_look_follows_the_one_before(
    tmp_path: Path, cli: Driver, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    pauses = iter([None, KeyboardInterrupt()])

    def pause(_: float) -> None:
        if interrupt := next(pauses):
            raise interrupt

    monkeypatch.setattr(of_cli, "time", SimpleNamespace(sleep=pause))
    arguments = ("status", "--watch", "--output", str(tmp_path / "runs"), *([form] if form == "--json" else []))
    done = cli(*arguments)
    assert (done.returncode, done.stderr) == (0, "") and "\x1b" not in done.stdout
    if form == "--json":
        assert [len(json.loads(line)["services"]) for line in done.stdout.splitlines()] == [5, 5]
    else:
        assert done.stdout.count("steerer") == 2 and done.stdout.count("down") >= 10


def test_on_a_terminal_the_tables_are_redrawn_until_ctrl_c(environment: dict[str, str], tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(sys.executable, [*COMMAND, "--output", str(tmp_path / "runs")], environment)
    shown, sent = b"", False
    with suppress(OSError):  # the terminal of a process that has ended
        while part := os.read(terminal, 1 << 16):
            shown += part
            if not sent and shown.count(b"steerer") >= 3:
                os.write(terminal, b"\x03")
                sent = True
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert b"\x1b[1A" in shown  # the cursor moves up, over the tables before
    assert b"Traceback" not in shown


HOSTILE = b'{"service": "\\u001b[2J", "reason": "\\u001b[31mred\\nline"}'


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskQueue:
    """Everything in the table waits, and one good task; three dead letters are none, and one is."""
    for name, value in cluster_environment("http://127.0.0.1:9", tmp_path).items():
        monkeypatch.setenv(name, value)
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
