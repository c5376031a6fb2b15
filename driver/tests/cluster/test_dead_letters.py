"""Dead letters are listed, selected, sent again and dropped on both brokers, as an operator meets them."""

import base64
import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from driver.tests.cluster.letters_bench import ALL, NUM_COMMANDS, Bench, verdicts
from driver.tests.conftest import invoked
from tests.poison import POISON, QUEUE, echo
from tests.servers import redis as redis_server
from tests.servers.services import cluster_environment
from typer.testing import Result

from poolbench.contracts.wire import cancel_path, failure_path
from poolbench.errors import BrokerError, ConfigError, NotFoundError, UnknownNameError
from poolbench.queue import TaskQueue
from poolbench.queue.letters import DeadLetter
from poolbench.queue.messages import MAX_MESSAGE_BYTES, Misunderstood
from poolbench_driver.cluster.dead_letters import LetterFilter, LetterOutcome, read_since


@pytest.fixture(params=redis_server.BROKERS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with redis_server.broker(request.param, tmp_path) as url:
        yield Bench(url, tmp_path)


def test_a_task_is_sent_again_without_its_failure_and_its_letter_goes(bench: Bench) -> None:
    task, other = echo(1), echo(2)
    bench.bury(task, other)
    for path in (failure_path(task.task_id), cancel_path(task.task_id)):
        bench.artifacts.store.put(path, b"{}")
    letters = bench.letters()
    first = letters.select(ALL)[0]
    assert verdicts(letters.retry([first])) == [LetterOutcome.SENT]
    assert bench.queue.waiting("prober") == {task.task_id} and bench.queue.depth("prober") == 1
    assert not list(bench.artifacts.store.list("failures/")) and not list(bench.artifacts.store.list("cancelled/"))
    assert [each.task_id for each in bench.queue.dead_letters("prober")] == [other.task_id]
    assert verdicts(letters.retry([first])) == [LetterOutcome.GONE]
    assert bench.queue.depth("prober") == 1


def test_an_interrupted_retry_loses_nothing_and_is_repeated_without_sending_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.bury(echo(1), echo(1))  # one task may have several letters
    letters = bench.letters()

    def away(*args: Any) -> bool:
        raise BrokerError("the broker is away")

    for method, depth in (("send", 0), ("remove_letter", 1)):
        with monkeypatch.context() as patched, pytest.raises(BrokerError):
            patched.setattr(letters.queue, method, away)
            list(letters.retry(letters.select(ALL)))
        assert (bench.queue.num_dead_letters("prober"), bench.queue.depth("prober")) == (2, depth)
    assert verdicts(letters.retry(letters.select(ALL))) == [LetterOutcome.WAITING] * 2
    assert (bench.queue.num_dead_letters("prober"), bench.queue.depth("prober")) == (0, 1)


def test_a_task_in_work_is_not_sent_again(bench: Bench) -> None:
    bench.bury(echo(1))
    letters = bench.letters()
    lease = letters.leases.acquire(echo(1).task_id)
    assert lease is not None
    with lease:
        assert verdicts(letters.retry(letters.select(ALL))) == [LetterOutcome.WAITING]
    assert bench.queue.depth("prober") == 0


def test_a_letter_that_another_command_works_on_is_left_alone(bench: Bench) -> None:
    bench.bury(echo(1))
    letters = bench.letters()
    lease = letters.leases.acquire(f"dead-letter/{echo(1).task_id}")
    assert lease is not None
    with lease:
        assert verdicts(bench.letters().retry(letters.select(ALL))) == [LetterOutcome.HELD]
        assert verdicts(bench.letters().drop(letters.select(ALL))) == [LetterOutcome.HELD]
    assert bench.queue.num_dead_letters("prober") == 1 and bench.queue.depth("prober") == 0


def test_commands_at_once_send_each_task_once(bench: Bench) -> None:
    tasks = [echo(number) for number in range(20)]
    bench.bury(*tasks, *tasks[:3])
    done = bench.at_once(lambda letters: list(letters.retry(letters.select(ALL))))
    sent = Counter(report.letter.letter_id for each in done for report in each if report.verdict == LetterOutcome.SENT)
    assert len(sent) == 23 and set(sent.values()) == {1}
    assert {report.verdict for each in done for report in each} <= {
        LetterOutcome.SENT,
        LetterOutcome.GONE,
        LetterOutcome.HELD,
    }
    assert bench.queue.waiting("prober") == {task.task_id for task in tasks}
    assert bench.queue.depth("prober") == len(tasks) and bench.queue.num_dead_letters("prober") == 0


def test_commands_at_once_drop_each_letter_once_and_no_other(bench: Bench) -> None:
    bench.bury(*(echo(number) for number in range(20)))
    doomed = bench.letters().select(ALL)[:12]
    done = bench.at_once(lambda letters: list(letters.drop(doomed)))
    dropped = Counter(
        report.letter.letter_id for each in done for report in each if report.verdict == LetterOutcome.DROPPED
    )
    assert len(dropped) == 12 and set(dropped.values()) == {1}
    assert bench.queue.num_dead_letters("prober") == 8 and bench.queue.depth("prober") == 0


def test_only_one_of_several_removals_of_one_letter_counts(bench: Bench) -> None:
    """The removal is atomic by itself, should a lease have ended too early."""
    bench.bury(echo(1))
    bench.put(b" " * (MAX_MESSAGE_BYTES + 1), 1)
    for each in bench.letters().select(ALL):
        removed = bench.at_once(lambda letters, each=each: [letters.queue.remove_letter(each)])  # type: ignore[misc]
        assert sorted(one for many in removed for one in many) == [False] * (NUM_COMMANDS - 1) + [True]


def test_what_no_service_would_take_stays_and_says_why(bench: Bench) -> None:
    task = echo(1).model_dump(mode="json")
    for changed in ({"kind": "nothing.do"}, {"schema_version": 99}, {"params": {"x": "y" * MAX_MESSAGE_BYTES}}):
        bench.queue.bury("prober", task | changed, "no luck")
    for number, raw in enumerate([b"garbage", b"\xff", b"[1]", b" " * (MAX_MESSAGE_BYTES + 1)]):
        bench.put(raw, number)
    letters = bench.letters()
    reports = list(letters.retry(letters.select(ALL)))
    assert verdicts(reports) == [LetterOutcome.NO_TASK] * 7
    why = " | ".join(report.why for report in reports)
    told = ("'nothing.do'", "version 99", "at most 4194304", "a message that is not a task")
    assert all(text in why for text in told)
    assert bench.queue.num_dead_letters("prober") == 7 and bench.queue.depth("prober") == 0
    ids = [report.letter.letter_id for report in reports]
    assert len(set(ids)) == 7 and ids == [each.letter.letter_id for each in letters.retry(letters.select(ALL))]
    assert verdicts(letters.drop(letters.select(ALL))) == [LetterOutcome.DROPPED] * 7
    assert bench.queue.num_dead_letters("prober") == 0


def test_equal_letters_have_one_id_and_go_together(bench: Bench) -> None:
    for number in range(3):
        bench.put(b"garbage", number)
    letters = bench.letters()
    name = letters.select(ALL)[0].letter.letter_id
    assert len(letters.find([name, name[:6]])) == 3
    assert verdicts(letters.drop(letters.find([name]))) == [LetterOutcome.DROPPED] * 3


HOSTILE = {"schema_version": 1, "service": "\x1b[2J", "reason": "\x1b[31mred\x07\u202e", "task_id": "\x9b2J\n"}


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A broker and a store in folders, which the commands find."""
    for name, value in cluster_environment("http://127.0.0.1:9", tmp_path).items():
        monkeypatch.setenv(name, value)
    return Bench(f"filesystem://{tmp_path}/queue", tmp_path)


@pytest.fixture
def queue(filled: Bench) -> TaskQueue:
    return filled.queue


def command(*arguments: str, answer: str = "") -> Result:
    return invoked("dead-letters", *arguments, answer=answer)


def test_letters_are_listed_with_filters(filled: Bench) -> None:
    assert "no dead letters" in command("ls").output
    filled.bury(echo(1), echo(2, "scorer.echo"))
    table = command("ls").output
    assert echo(1).task_id in table and "scorer.echo" in table and "no luck" in table
    (row,) = json.loads(command("ls", "--json", "--service", "scorer").output)
    assert (row["task_id"], row["kind"], row["service"]) == (echo(2, "scorer.echo").task_id, "scorer.echo", "scorer")
    assert row["size"] == len(json.dumps(echo(2, "scorer.echo").model_dump(mode="json")))
    (row,) = json.loads(command("ls", "--json", "--kind", "prober.echo", "--since", "1h").output)
    assert row["task_id"] == echo(1).task_id
    assert json.loads(command("ls", "--json", "--since", "2999-01-01").output) == []
    with pytest.raises(UnknownNameError, match="did you mean scorer"):
        command("ls", "--service", "scorers")


def test_a_letter_is_shown_whole(filled: Bench, queue: TaskQueue) -> None:
    filled.bury(echo(1))
    name = queue.dead_letters("prober")[0].letter_id
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


@pytest.mark.lane(name="series")
def test_nothing_hostile_reaches_the_terminal(filled: Bench, queue: TaskQueue) -> None:
    task = echo(1).model_dump(mode="json")
    hostile = [b"\xff", b"[" * 100_000, json.dumps(HOSTILE).encode(), "\x1b[2J\x9b\u202e".encode()]
    hostile += [json.dumps({**HOSTILE, "task": {**task, "kind": "\x1b[2J", "run_id": "\x1b]0;x\x07"}}).encode()]
    hostile += [json.dumps({**HOSTILE, "at": at}).encode() for at in ("0001-01-01T00:00:00+14:00", "2026-01-01", 1e300)]
    hostile += [json.dumps({**HOSTILE, "num_bytes": n, "body": "\x1b[2J"}).encode() for n in (-1, 10**30, 5)]
    for number, raw in enumerate([*hostile, *(raw for raw, _ in POISON.values())]):
        filled.put(raw, number)
    ids = [row["id"] for row in json.loads(command("ls", "--json").output)]
    assert len(ids) == len(hostile) + len(POISON)
    some = [*ids[: len(hostile)], *ids[len(hostile) :: 9]]  # each command reads all letters
    outputs = [command("ls").output, *(command("show", name).output for name in some)]
    outputs += [command("show", name, "--json").output for name in some]
    outputs += [command("retry", "--all").output, command("drop", "--all", "--yes").output]
    for output in outputs:
        assert all(char == "\n" or char.isprintable() for char in output)
    assert queue.num_dead_letters("prober") == 0


def test_retry_and_drop_take_ids_or_all(filled: Bench, queue: TaskQueue) -> None:
    for wrong in (("retry",), ("drop",), ("retry", "abc", "--all"), ("drop", "abc", "--service", "prober")):
        with pytest.raises(ConfigError):
            command(*wrong)
    assert "no dead letters" in command("retry", "--all").output
    filled.bury(echo(1))
    first = queue.dead_letters("prober")[0].letter_id
    filled.bury(echo(2), echo(3, "scorer.echo"))
    done = command("retry", first[:8])
    assert done.return_value == 0 and "sent again" in done.output
    assert queue.waiting("prober") == {echo(1).task_id}
    assert command("retry", "--all", "--service", "scorer").return_value == 0
    assert queue.depth("scorer") == 1 and queue.num_dead_letters("prober") == 1
    filled.put(b"garbage", 9)
    assert command("retry", "--all").return_value == 0
    (garbage,) = queue.dead_letters("prober")
    done = command("retry", garbage.letter_id)
    assert done.return_value == 1 and "a message that is not a task" in done.output
    assert command("drop", garbage.letter_id).return_value == 0
    assert queue.num_dead_letters("prober") == 0 and queue.depth("prober") == 2


@pytest.mark.parametrize(("answer", "left"), [("n\n", 2), ("y\n", 0)])
def test_drop_asks_before_it_drops_all(filled: Bench, answer: str, left: int) -> None:
    filled.bury(echo(1), echo(2))
    done = command("drop", "--all", answer=answer)
    assert done.return_value == 0 and "drop 2 dead letters?" in done.output
    assert filled.queue.num_dead_letters("prober") == left


def test_drop_does_not_take_silence_for_a_yes(filled: Bench, queue: TaskQueue) -> None:
    filled.bury(echo(1))
    with pytest.raises(ConfigError, match="--yes"):
        command("drop", "--all")
    assert queue.num_dead_letters("prober") == 1
    done: Any = command("drop", "--all", "--yes")
    assert "dropped" in done.output and queue.num_dead_letters("prober") == 0


def test_ids_are_abbreviated_while_they_are_clear(filled: Bench) -> None:
    filled.bury(*(echo(number) for number in range(40)))
    letters = filled.letters()
    ids = [each.letter.letter_id for each in letters.select(ALL)]
    assert all(len(letters.find([name[:12]])) == 1 for name in ids[:3])
    common = next(digit for digit in "0123456789abcdef" if sum(name.startswith(digit) for name in ids) > 1)
    with pytest.raises(ConfigError, match="give more"):
        letters.find([common])
    for wrong in ("x", "", "\x1b[2J"):
        with pytest.raises(NotFoundError, match="dead-letters ls") as caught:
            letters.find([wrong])
        assert "\x1b" not in str(caught.value)


def test_letters_are_selected_by_service_kind_and_time(filled: Bench) -> None:
    filled.bury(echo(1), echo(2, "scorer.echo"))
    filled.put(DeadLetter.of_task("prober", {"task_id": "old"}, "x").model_copy(update={"at": _ago(2)}).encode())
    letters = filled.letters()

    def found(**filters: Any) -> set[str]:
        return {each.letter.task_id for each in letters.select(LetterFilter(**filters))}

    assert found(service="scorer") == found(kind="scorer.echo") == {echo(2, "scorer.echo").task_id}
    assert "old" in found(since=read_since("3d")) and "old" not in found(since=read_since("1d"))
    filled.put(b"garbage", 9)  # nothing says when it came
    assert "" in found() and "" not in found(since=read_since("9999d"))
    assert found(since=read_since("2999-01-01")) == found(kind="none.such") == set()


def _ago(days: int) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


@pytest.mark.parametrize("text", ["soon", "3 days", "-1h", "1w", "2026-13-01", "9999999d"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="use an age such as 90m"):
        read_since(text)
