"""Run and export with the commands that users type."""

import subprocess
import sys
from pathlib import Path

from poolbench.statuses import RunState
from poolbench_driver.records import Run, find_run

DRIVER = Path(sys.executable).with_name("poolbench-driver")
#: Exit codes of commands that wrote what they could: done, and done with failures.
FINISHED = (0, 1)


def measure(runs: Path, *options: str) -> Run:
    """Run with options of the command, and return the run. Raise SystemExit if it failed or was cancelled."""
    code = subprocess.run([str(DRIVER), "run", "--output", str(runs), *options], check=False).returncode
    if code not in FINISHED:
        raise SystemExit(code)
    run = find_run(runs, "latest")
    if run.read_state().get("state") == RunState.CANCELLED:
        print(f"{run.id} was cancelled; the same command continues")
        raise SystemExit(code)
    return run


def export(run: Run, output: Path, concept: str, strategy: str, layer: int) -> Path:
    """Export the directions of a concept; return the file of one of them."""
    command = [str(DRIVER), "export", "directions", run.id, "--runs", str(run.path.parent), "--output", str(output)]
    subprocess.run([*command, "--concepts", concept], check=True)
    (file,) = output.glob(f"*/layer_{layer}/{concept}__{strategy}.npy")
    return file
