"""The displays: each takes all that the loop tells."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from poolbench.contracts.tasks import Task
from poolbench.errors import ConfigError
from poolbench_driver.run.progress import open_display

TASK = Task(kind="prober.probe", outputs={"measures": "prober.probe.1"})


@pytest.mark.parametrize("name", ["rich", "plain", "json", "none"])
def test_displays_take_everything_the_loop_tells(name: str, capsys: pytest.CaptureFixture[str]) -> None:
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
        assert [event["event"] for event in events] == ["note", "start", "done", "failed"]
        assert events[2]["reused"] is True
    elif name != "none":
        assert "a [bracketed] reason" in " ".join(shown.split())


def test_unknown_display_names_the_known() -> None:
    with pytest.raises(ConfigError, match="rich, plain, json, none"):
        open_display("fancy")
