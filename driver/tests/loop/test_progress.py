"""The displays: each takes all events of the loop."""

import json
from collections import Counter
from io import StringIO
from typing import Any

import pytest

from poolbench.contracts.tasks import Task
from poolbench.steps import STEPS, label_of
from poolbench_driver.loop import progress
from poolbench_driver.loop.progress import open_display

TASK = Task(kind="prober.probe", outputs={"measures": "prober.probe.1"})


@pytest.mark.parametrize("name", ["rich", "plain", "json", "none"])
def test_displays_take_every_event_of_the_loop(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    display = open_display(name)
    display.note("before the start")
    display.start(Counter({"prober.probe": 2, "third.party": 1}))
    display.tick({TASK.task_id: TASK})
    display.done(TASK, reused=True)
    display.failed("t2", "prober.probe", "a [bracketed] reason")
    display.close()
    shown = capsys.readouterr().err
    if name == "json":
        events = [json.loads(line) for line in shown.splitlines()]
        assert [event["event"] for event in events] == ["note", "start", "done", "failed", "times"]
        assert events[2]["reused"] is True
        sent, ended = events[4]["stages"]["prober.probe"]
        assert 0 <= sent <= ended
    elif name != "none":
        assert "a [bracketed] reason" in " ".join(shown.split())
        assert "time: 0 s" in shown and "probe (D1)" in shown.splitlines()[-1]


@pytest.mark.parametrize("name", ["rich", "plain", "json", "none"])
def test_a_run_that_is_planned_again_counts_from_the_start(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    display: Any = open_display(name)
    for total in (3, 1):
        display.start(Counter({"prober.probe": total}))
        display.done(TASK)
    display.close()
    assert (display.totals, display.finished) == ({"prober.probe": 1}, {"prober.probe": 1})
    shown = capsys.readouterr().err
    assert shown.count('"times"' if name == "json" else "time: ") == (name != "none")


def test_plain_progress_is_a_line_when_something_has_changed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PLAIN_INTERVAL_S", 0.0)
    display = open_display("plain")
    display.start(Counter({"prober.probe": 3}))
    for _ in range(3):
        display.tick({TASK.task_id: TASK})
    display.done(TASK)
    for _ in range(3):
        display.tick({TASK.task_id: TASK})
    lines = [line.partition("s  ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["0/3 tasks: probe (D1) 0/3", "1/3 tasks, about 2 s left: probe (D1) 1/3"]


def test_plain_progress_names_what_is_in_work_in_at_most_100_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PLAIN_INTERVAL_S", 0.0)
    display: Any = open_display("plain")
    display.started_s -= 99_999.0
    display.start(Counter(dict.fromkeys(STEPS, 10_000)))
    tasks = [Task(kind=kind, outputs={"table": f"{kind}.1"}) for kind in STEPS]
    display.tick({str(n): task for n, task in enumerate(tasks)})
    display.done(tasks[0])
    display.tick({"0": tasks[0]})
    first, second = capsys.readouterr().err.splitlines()
    assert len(first) <= 100 and first.endswith(" more") and len(STEPS) > 20
    assert second.endswith(f"1/{10_000 * len(STEPS)} tasks: {label_of(tasks[0].kind)} 1/10000")


def test_a_run_without_work_says_nothing_about_time(capsys: pytest.CaptureFixture[str]) -> None:
    display = open_display("plain")
    display.start(Counter({"prober.probe": 1}))
    display.done(TASK, reused=True)
    display.close()
    assert "time:" not in capsys.readouterr().err


def test_the_rate_of_a_stage_leaves_out_time_in_which_its_tasks_wait_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    display: Any = open_display("none")
    now_s = iter([0.0, 10.0, 10.0, 1010.0, 1030.0])  # at each tick, and at each end of a task
    monkeypatch.setattr(type(display), "elapsed_s", property(lambda _: next(now_s)))
    display.start(Counter({"prober.probe": 3}))
    for in_flight in ({TASK.task_id: TASK}, {}, {TASK.task_id: TASK}):
        display.tick(in_flight)
        if in_flight:
            display.done(TASK)
    assert display.left_s("prober.probe") == 15.0  # 10 and 20 s for two tasks


@pytest.mark.parametrize("name", ["plain", "json"])
def test_a_line_is_written_at_once_so_that_lines_of_threads_stay_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    stream = StringIO()
    monkeypatch.setattr(stream, "write", written.append)
    monkeypatch.setattr("sys.stderr", stream)
    open_display(name).note("first figures")
    assert len(written) == 1 and written[0].endswith("\n")
