"""The parts of the soak test that need no cluster."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.servers import clocks
from tests.trials.soak.__main__ import Plan
from tests.trials.soak.deadline import Deadline, HungError

_TIMES = """
import datetime, sys, threading, time
print(time.time(), time.monotonic(), flush=True)
sys.stdin.readline()
print(time.time(), time.monotonic(), datetime.datetime.now(datetime.UTC).timestamp())
time.sleep(0.01)
assert not threading.Event().wait(0.01)
"""


def test_a_wall_clock_jumps_in_a_process_that_runs(tmp_path: Path) -> None:
    clock = clocks.clock(clocks.build(tmp_path), tmp_path / "clock")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", _TIMES], env=os.environ | clock.environment, **pipes)
    assert process.stdout is not None
    wall, monotonic = map(float, process.stdout.readline().split())
    clock.jump(-3600)
    rest, _ = process.communicate("\n")
    wall_after, monotonic_after, date_after = map(float, rest.split())
    assert process.returncode == 0
    passed_s = monotonic_after - monotonic
    assert wall_after - wall == pytest.approx(passed_s - 3600, abs=1)
    assert date_after == pytest.approx(wall_after, abs=1)


def test_a_deadline_names_what_it_waited_for() -> None:
    with pytest.raises(HungError, match="waits for the moon"), Deadline(0.05) as deadline:
        deadline.phase = "the moon"
        time.sleep(60)


def test_an_unknown_fault_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOAK_FAULTS", "replica,meteor")
    with pytest.raises(SystemExit, match="unknown meteor; choose of replica, engine"):
        Plan.load()
