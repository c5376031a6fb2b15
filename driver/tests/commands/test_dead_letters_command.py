"""`poolbench-driver dead-letters` as an operator meets it, with hostile letters and letters of sensitive concepts."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tests.queue.poison import POISON, QUEUE, echo
from typer.testing import CliRunner, Result

from poolbench.contracts.tasks import Task
from poolbench.errors import ConfigError, NotFoundError, UnknownNameError
from poolbench.queue import Broker, TaskQueue
from poolbench.queue.envelope import Misunderstood
from poolbench.queue.letters import DeadLetter
from poolbench_driver.cli import app

SECRET = "SECRET-PASSAGE"
HOSTILE = {"schema_version": 1, "service": "\x1b[2J", "reason": "\x1b[31mred\x07\u202e", "task_id": "\x9b2J\n"}


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskQueue:
    values = {"STATE": tmp_path, "STORE": tmp_path / "store", "BROKER": f"filesystem://{tmp_path}/queue"}
    for name, value in {**values, "HTTP": "http://127.0.0.1:9", "TOKEN": "x"}.items():
        monkeypatch.setenv(f"POOLBENCH_{name}", str(value))
    return TaskQueue(Broker(f"filesystem://{tmp_path}/queue"))


def put(queue: TaskQueue, raw: bytes, number: int) -> None:
    (queue.broker.folder / "dead" / f"{number:020d}.{QUEUE}.msg").write_bytes(raw)


def bury(queue: TaskQueue, *tasks: Task) -> list[str]:
    for task in tasks:
        queue.bury(task.service, task.model_dump(mode="json"), "the store is away")
    return [each.letter_id for task in tasks for each in queue.dead_letters(task.service)][: len(tasks)]


def command(*arguments: str, answer: str = "") -> Result:
    done = CliRunner().invoke(app, ["dead-letters", *arguments], input=answer, standalone_mode=False)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_letters_are_listed_with_filters(queue: TaskQueue) -> None:
    assert "no dead letters" in command("ls").output
    bury(queue, echo(1))
    bury(queue, echo(2, "scorer.echo"))
    table = command("ls").output
    assert echo(1).task_id in table and "scorer.echo" in table and "the store is away" in table
    (row,) = json.loads(command("ls", "--json", "--service", "scorer").output)
    assert (row["task_id"], row["kind"], row["service"]) == (echo(2, "scorer.echo").task_id, "scorer.echo", "scorer")
    assert row["size"] == len(json.dumps(echo(2, "scorer.echo").model_dump(mode="json")))
    (row,) = json.loads(command("ls", "--json", "--kind", "prober.echo", "--since", "1h").output)
    assert row["task_id"] == echo(1).task_id
    assert json.loads(command("ls", "--json", "--since", "2999-01-01").output) == []
    with pytest.raises(UnknownNameError, match="did you mean scorer"):
        command("ls", "--service", "scorers")


def test_a_letter_is_shown_whole(queue: TaskQueue) -> None:
    (name,) = bury(queue, echo(1))
    shown = command("show", name[:10]).output
    assert name in shown and '"value": 1' in shown
    assert json.loads(command("show", name, "--json").output)["task"] == echo(1).model_dump(mode="json")
    queue._spool.bury(QUEUE, DeadLetter.of_message("prober", Misunderstood("why", b'{"a":\n\t"\x1b[2Jb"}', 14)))
    found = queue.dead_letters("prober")[-1]
    assert 'text:\n{"a":\n\\t"\\x1b[2Jb"}\n' in command("show", found.letter_id).output
    queue._spool.bury(QUEUE, DeadLetter.of_message("prober", Misunderstood("why", b"\xff\x00", 2)))
    found = queue.dead_letters("prober")[-1]
    assert base64.b64encode(b"\xff\x00").decode() in command("show", found.letter_id).output
    with pytest.raises(NotFoundError):
        command("show", "nothing")


def test_nothing_hostile_reaches_the_terminal(queue: TaskQueue) -> None:
    task = echo(1).model_dump(mode="json")
    hostile = [b"\xff", b"[" * 100_000, json.dumps(HOSTILE).encode(), "\x1b[2J\x9b\u202e".encode()]
    hostile += [json.dumps({**HOSTILE, "task": {**task, "kind": "\x1b[2J", "run_id": "\x1b]0;x\x07"}}).encode()]
    hostile += [json.dumps({**HOSTILE, "at": at}).encode() for at in ("0001-01-01T00:00:00+14:00", "2026-01-01", 1e300)]
    hostile += [json.dumps({**HOSTILE, "num_bytes": n, "body": "\x1b[2J"}).encode() for n in (-1, 10**30, 5)]
    for number, raw in enumerate([*hostile, *(raw for raw, _ in POISON.values())]):
        put(queue, raw, number)
    ids = [row["id"] for row in json.loads(command("ls", "--json").output)]
    assert len(ids) == len(hostile) + len(POISON)
    some = [*ids[: len(hostile)], *ids[len(hostile) :: 9]]  # each command reads all letters
    outputs = [command("ls").output, *(command("show", name).output for name in some)]
    outputs += [command("show", name, "--json").output for name in some]
    outputs += [command("retry", "--all").output, command("drop", "--all", "--yes").output]
    for output in outputs:
        assert all(char == "\n" or char.isprintable() for char in output)
    assert queue.num_dead_letters("prober") == 0


def test_retry_and_drop_take_ids_or_all(queue: TaskQueue) -> None:
    for wrong in (("retry",), ("drop",), ("retry", "abc", "--all"), ("drop", "abc", "--service", "prober")):
        with pytest.raises(ConfigError):
            command(*wrong)
    assert "no dead letters" in command("retry", "--all").output
    (first,) = bury(queue, echo(1))
    bury(queue, echo(2))
    bury(queue, echo(3, "scorer.echo"))
    done = command("retry", first[:8])
    assert done.return_value == 0 and "sent again" in done.output
    assert queue.waiting("prober") == {echo(1).task_id}
    assert command("retry", "--all", "--service", "scorer").return_value == 0
    assert queue.depth("scorer") == 1 and queue.num_dead_letters("prober") == 1
    put(queue, b"garbage", 9)
    assert command("retry", "--all").return_value == 0
    (garbage,) = queue.dead_letters("prober")
    done = command("retry", garbage.letter_id)
    assert done.return_value == 1 and "a message that is not a task" in done.output
    assert command("drop", garbage.letter_id).return_value == 0
    assert queue.num_dead_letters("prober") == 0 and queue.depth("prober") == 2


@pytest.mark.parametrize(("answer", "left"), [("n\n", 2), ("y\n", 0)])
def test_drop_asks_before_it_drops_all(queue: TaskQueue, answer: str, left: int) -> None:
    bury(queue, echo(1), echo(2))
    done = command("drop", "--all", answer=answer)
    assert done.return_value == 0 and "drop 2 dead letters?" in done.output
    assert queue.num_dead_letters("prober") == left


def test_drop_does_not_take_silence_for_a_yes(queue: TaskQueue) -> None:
    bury(queue, echo(1))
    with pytest.raises(ConfigError, match="--yes"):
        command("drop", "--all")
    assert queue.num_dead_letters("prober") == 1
    done: Any = command("drop", "--all", "--yes")
    assert "dropped" in done.output and queue.num_dead_letters("prober") == 0
