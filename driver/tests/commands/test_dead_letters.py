"""Dead letters are listed, sent again and dropped on both brokers, also by several commands at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driver.tests.commands.letters_bench import ALL, NUM_COMMANDS, Bench, verdicts
from tests.queue.poison import echo
from tests.servers import redis as redis_server

from poolbench.contracts.wire import cancel_path, failure_path
from poolbench.errors import BrokerError
from poolbench.queue.envelope import MAX_MESSAGE_BYTES
from poolbench_driver.cluster.dead_letters import Verdict


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
    assert verdicts(letters.retry([first])) == [Verdict.SENT]
    assert bench.queue.waiting("prober") == {task.task_id} and bench.queue.depth("prober") == 1
    assert not list(bench.artifacts.store.list("failures/")) and not list(bench.artifacts.store.list("cancelled/"))
    assert [each.task_id for each in bench.queue.dead_letters("prober")] == [other.task_id]
    assert verdicts(letters.retry([first])) == [Verdict.GONE]
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
    assert verdicts(letters.retry(letters.select(ALL))) == [Verdict.WAITING] * 2
    assert (bench.queue.num_dead_letters("prober"), bench.queue.depth("prober")) == (0, 1)


def test_a_task_in_work_is_not_sent_again(bench: Bench) -> None:
    bench.bury(echo(1))
    letters = bench.letters()
    lease = letters.leases.acquire(echo(1).task_id)
    assert lease is not None
    with lease:
        assert verdicts(letters.retry(letters.select(ALL))) == [Verdict.WAITING]
    assert bench.queue.depth("prober") == 0


def test_a_letter_that_another_command_works_on_is_left_alone(bench: Bench) -> None:
    bench.bury(echo(1))
    letters = bench.letters()
    lease = letters.leases.acquire(f"dead-letter/{echo(1).task_id}")
    assert lease is not None
    with lease:
        assert verdicts(bench.letters().retry(letters.select(ALL))) == [Verdict.HELD]
        assert verdicts(bench.letters().drop(letters.select(ALL))) == [Verdict.HELD]
    assert bench.queue.num_dead_letters("prober") == 1 and bench.queue.depth("prober") == 0


def test_commands_at_once_send_each_task_once(bench: Bench) -> None:
    tasks = [echo(number) for number in range(20)]
    bench.bury(*tasks, *tasks[:3])
    done = bench.at_once(lambda letters: list(letters.retry(letters.select(ALL))))
    sent = Counter(report.letter.letter_id for each in done for report in each if report.verdict == Verdict.SENT)
    assert len(sent) == 23 and set(sent.values()) == {1}
    assert {report.verdict for each in done for report in each} <= {Verdict.SENT, Verdict.GONE, Verdict.HELD}
    assert bench.queue.waiting("prober") == {task.task_id for task in tasks}
    assert bench.queue.depth("prober") == len(tasks) and bench.queue.num_dead_letters("prober") == 0


def test_commands_at_once_drop_each_letter_once_and_no_other(bench: Bench) -> None:
    bench.bury(*(echo(number) for number in range(20)))
    doomed = bench.letters().select(ALL)[:12]
    done = bench.at_once(lambda letters: list(letters.drop(doomed)))
    dropped = Counter(report.letter.letter_id for each in done for report in each if report.verdict == Verdict.DROPPED)
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
    assert verdicts(reports) == [Verdict.NO_TASK] * 7
    why = " | ".join(report.why for report in reports)
    told = ("'nothing.do'", "version 99", "at most 4194304", "a message that is not a task")
    assert all(text in why for text in told)
    assert bench.queue.num_dead_letters("prober") == 7 and bench.queue.depth("prober") == 0
    ids = [report.letter.letter_id for report in reports]
    assert len(set(ids)) == 7 and ids == [each.letter.letter_id for each in letters.retry(letters.select(ALL))]
    assert verdicts(letters.drop(letters.select(ALL))) == [Verdict.DROPPED] * 7
    assert bench.queue.num_dead_letters("prober") == 0


def test_equal_letters_have_one_id_and_go_together(bench: Bench) -> None:
    for number in range(3):
        bench.put(b"garbage", number)
    letters = bench.letters()
    name = letters.select(ALL)[0].letter.letter_id
    assert len(letters.find([name, name[:6]])) == 3
    assert verdicts(letters.drop(letters.find([name]))) == [Verdict.DROPPED] * 3
