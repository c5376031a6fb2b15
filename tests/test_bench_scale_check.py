"""`bench/scale_check.py` compares the simulation with a real Ray: its smoke test does the same tasks in both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers import redis as redis_server
from tests.waiting import PATIENCE_S

BENCH = Path(__file__).parents[1] / "bench"
#: Tasks become shorter than what they cost: this test holds that all of it works, and not the figure.
SPEED = 100

pytestmark = [pytest.mark.slow, *redis_server.NEEDED]


def test_the_smoke_test_does_every_task_on_a_real_cluster() -> None:
    name = "scale-check-smoke-test"
    command = [sys.executable, str(BENCH / "scale_check.py"), "--quick", "--speed", str(SPEED), "--name", name]
    path = BENCH / "out" / f"{name}.json"
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=2 * PATIENCE_S)
        assert done.returncode == 0, done.stderr[-3000:]
        report = json.loads(path.read_text())
    finally:
        path.unlink(missing_ok=True)
    real, simulated = report["figures"]["real"], report["figures"]["simulated"]
    assert real["failures"] == 0 and not simulated["executed_twice"]
    assert real["artifacts"] >= simulated["tasks"] > 0
    assert report["ratios"]["scale_check.simulated_vs_real"] == simulated["elapsed_s"] / real["elapsed_s"]
    assert "Traceback" not in done.stderr
