"""What a shell gets when it asks how a command goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

#: What was typed, and its completions.
CASES = {
    "find contrast --mod": ["--model"],
    "find con": ["conditionality", "contrast"],  # a name of an argument that settings declare
    "run --strategies A1_mean,A2": ["A1_mean,A2_max"],
    "run --model smol": ["smollm2-135m"],
    "report first": ["first-run"],
    "vectors show co": ["contrast-of-mine"],
    "steer --strategy 1' OR": [],
}
#: Asks for one completion after the other in one process; bash starts one for each.
ASKING = """
import json, os, sys
from poolbench_driver.cli import command_line
for typed in json.loads(sys.argv[1]):
    os.environ |= {"COMP_WORDS": f"poolbench-driver {typed}", "COMP_CWORD": str(len(typed.split()))}
    try:
        command_line()([], prog_name="poolbench-driver")
    except SystemExit as ended:
        print("ended", ended.code)
"""


def completed(command: list[str], folder: Path, **settings: str) -> str:
    asked = {"_POOLBENCH_DRIVER_COMPLETE": "complete_bash", "POOLBENCH_STATE": str(folder / "state"), **settings}
    environment = {**os.environ, **asked}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
    return done.stdout


def test_names_are_completed_without_a_cluster(tmp_path: Path) -> None:
    for name in ("runs/first-run/config.resolved.yaml", "vectors/contrast-of-mine/card.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    shown = completed([sys.executable, "-c", ASKING, json.dumps([*CASES])], tmp_path)
    answers = [part.split() for part in shown.split("ended 0\n")[:-1]]
    assert dict(zip(CASES, answers, strict=True)) == CASES


def test_the_installed_command_completes(tmp_path: Path) -> None:
    command = str(Path(sys.executable).with_name("poolbench-driver"))
    shown = completed([command], tmp_path, COMP_WORDS="poolbench-driver find con", COMP_CWORD="2")
    assert shown.split() == CASES["find con"]
