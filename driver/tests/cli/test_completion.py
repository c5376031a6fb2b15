"""What a shell gets when it asks how a command goes on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(sys.executable).with_name("poolbench-driver")


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("find contrast --mod", ["--model"]),
        ("find con", ["conditionality", "contrast"]),  # a command of a suite
        ("run --strategies A1_mean,A2", ["A1_mean,A2_max"]),
        ("run --model smol", ["smollm2-135m"]),
        ("report first", ["first-run"]),
        ("vectors show co", ["contrast-of-mine"]),
        ("steer --strategy 1' OR", []),
    ],
)
def test_names_are_completed_without_a_cluster(typed: str, completed: list[str], tmp_path: Path) -> None:
    (tmp_path / "runs/first-run").mkdir(parents=True)
    (tmp_path / "runs/first-run/config.resolved.yaml").touch()
    (tmp_path / "vectors/contrast-of-mine").mkdir(parents=True)
    (tmp_path / "vectors/contrast-of-mine/card.json").touch()
    words = f"poolbench-driver {typed}"
    asked = {"_POOLBENCH_DRIVER_COMPLETE": "complete_bash", "COMP_WORDS": words}
    asked |= {"COMP_CWORD": str(len(words.split()) - 1), "POOLBENCH_STATE": str(tmp_path / "state")}
    done = subprocess.run(
        [DRIVER], env={**os.environ, **asked}, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == completed
