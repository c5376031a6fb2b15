"""`make test-pythons`: install, demo and tests on each Python of this machine, from fresh clones, as a new user would.

Each clone is installed without pip's configuration and without link folders, so from the package index alone. Prints a
table in Markdown. About 25 minutes and 8 GB of disk for each Python; by hand, before a release.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from deploy.install import SUPPORTED, find_python

REPOSITORY = Path(__file__).resolve().parents[1]
STEPS = ("install", "demo", "test")


@dataclass
class Trial:
    """What was seen on one Python."""

    python: str
    torch: str = "none"
    gigabytes: float = 0.0
    seconds: dict[str, str] = field(default_factory=dict)

    @property
    def row(self) -> str:
        """Return the line of the table."""
        cells = [self.python, self.torch, f"{self.gigabytes:.1f}", *(self.seconds.get(step, "-") for step in STEPS)]
        return f"| {' | '.join(cells)} |"


def main() -> int:
    """Try each Python; return 1 if a step failed on one of them."""
    trials = []
    for version in SUPPORTED:
        name = ".".join(map(str, version))
        if (python := find_python(f"python{name}")) is None:
            print(f"skipped: no Python {name} on this machine")
            continue
        with tempfile.TemporaryDirectory(prefix=f"poolbench-{name}-") as folder:
            trials.append(attempt(Path(folder, "poolbench"), name, python))
    print("| Python | PyTorch | GB | install | demo | test |\n|---|---|---|---|---|---|")
    print("\n".join(trial.row for trial in trials))
    return int(any("failed" in value for trial in trials for value in trial.seconds.values()))


def attempt(clone: Path, name: str, python: str) -> Trial:
    """Clone this checkout's last commit, and run the steps in it until one fails."""
    trial = Trial(name)
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
    environment |= {"PIP_CONFIG_FILE": os.devnull}
    environment |= {key: os.environ[key] for key in ("PIP_CERT", "PIP_INDEX_URL") if key in os.environ}
    try:
        for step in STEPS:
            print(f"== Python {name}: make {step}", flush=True)
            began = time.monotonic()
            command = ["make", "--no-print-directory", step, f"PYTHON={python}"]
            done = subprocess.run(command, cwd=clone, env=environment, check=False)
            trial.seconds[step] = f"{time.monotonic() - began:.0f} s" + (" failed" if done.returncode else "")
            if done.returncode:
                break
    finally:
        subprocess.run(["make", "--no-print-directory", "cluster-down"], cwd=clone, env=environment, check=False)
    size = subprocess.run(["du", "-sk", str(clone / ".venv")], check=False, capture_output=True, text=True).stdout
    trial.gigabytes = int(size.split()[0]) * 1024 / 1e9 if size else 0.0
    code = "import torch; print(torch.__version__)"
    asked = [str(clone / ".venv" / "bin" / "python"), "-c", code]
    if Path(asked[0]).exists():
        trial.torch = subprocess.run(asked, check=False, capture_output=True, text=True).stdout.strip() or "none"
    return trial


if __name__ == "__main__":
    sys.exit(main())
