"""Which dead letters a command is about: ids and their beginnings, service, kind and time."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from driver.tests.commands.letters_bench import ALL, Bench, verdicts
from tests.queue.poison import POISON, echo

from poolbench.errors import ConfigError, NotFoundError
from poolbench.queue.letters import DeadLetter
from poolbench_driver.cluster.dead_letters import Selection, Verdict, read_since


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(f"filesystem://{tmp_path}/queue", tmp_path)


def test_ids_are_abbreviated_while_they_are_clear(bench: Bench) -> None:
    bench.bury(*(echo(number) for number in range(40)))
    letters = bench.letters()
    ids = [each.letter.letter_id for each in letters.select(ALL)]
    assert all(len(letters.find([name[:12]])) == 1 for name in ids[:3])
    common = next(digit for digit in "0123456789abcdef" if sum(name.startswith(digit) for name in ids) > 1)
    with pytest.raises(ConfigError, match="give more"):
        letters.find([common])
    for wrong in ("x", "", "\x1b[2J"):
        with pytest.raises(NotFoundError, match="dead-letters ls") as caught:
            letters.find([wrong])
        assert "\x1b" not in str(caught.value)


def test_letters_are_selected_by_service_kind_and_time(bench: Bench) -> None:
    bench.bury(echo(1), echo(2, "scorer.echo"))
    bench.put(DeadLetter.of_task("prober", {"task_id": "old"}, "x").model_copy(update={"at": _ago(2)}).encode())
    letters = bench.letters()

    def found(**filters: Any) -> set[str]:
        return {each.letter.task_id for each in letters.select(Selection(**filters))}

    assert found(service="scorer") == found(kind="scorer.echo") == {echo(2, "scorer.echo").task_id}
    assert "old" in found(since=read_since("3d")) and "old" not in found(since=read_since("1d"))
    bench.put(b"garbage", 9)  # nothing says when it came
    assert "" in found() and "" not in found(since=read_since("9999d"))
    assert found(since=read_since("2999-01-01")) == found(kind="none.such") == set()


def _ago(days: int) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


@pytest.mark.parametrize("text", ["soon", "3 days", "-1h", "1w", "2026-13-01", "9999999d"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="use an age such as 90m"):
        read_since(text)


@pytest.mark.parametrize("name", POISON)
def test_letters_of_all_poison_are_found_by_id(bench: Bench, name: str) -> None:
    bench.put(POISON[name][0])
    letters = bench.letters()
    (found,) = letters.select(ALL)
    assert json.dumps(found.letter.model_dump(mode="json")).isprintable()
    assert verdicts(letters.retry([found])) == [Verdict.NO_TASK]
    assert verdicts(letters.drop([found])) == [Verdict.DROPPED]
