"""Runs benchmarks at their smallest size."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.ratios import RATIOS
from tests.pages import REPOSITORY
from tests.waiting import PATIENCE_S

BENCH = REPOSITORY / "bench"
#: Files in `bench/` that are not benchmarks.
SHARED = {"common", "ratios", "table"}


def script(name: str) -> Path:
    """Return the file of a benchmark: `queue.py` would hide a module of the standard library."""
    return BENCH / ("queues.py" if name == "queue" else f"{name}.py")


def smallest(name: str, out: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    """Run a benchmark at its smallest size; return its report, which has every ratio of the table."""
    command = [sys.executable, str(script(name)), "--smallest", "--out", str(out), *arguments]
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    report: dict[str, Any] = json.loads((out / f"{name}.json").read_text())
    assert report["name"] == name and report["options"]["smallest"]
    assert report["ratios"].keys() == RATIOS[name].keys()
    assert all(value is not None and value >= 0 for value in report["ratios"].values()), report["ratios"]
    return report
