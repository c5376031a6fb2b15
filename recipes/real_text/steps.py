"""Build the corpora of the real-text archives, and run on them, with the commands that users type."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DRIVER = Path(sys.executable).with_name("poolbench-driver")
#: Exit codes of commands that wrote what they could: done, and done with failures.
FINISHED = (0, 1)
_LACKING = re.compile(r"^(\w+) \(\d+ of \d+\) \.\.\. none: (.+)$", re.MULTILINE)


def build(corpus: Path, budget: str, concepts: str) -> dict[str, str]:
    """Build the corpora into a folder; return why a concept was not built, by concept.

    Args:
        concepts: Ids with commas, or `all`.

    Raises:
        SystemExit: The command failed, with its exit code.
    """
    command = [str(DRIVER), "corpus", "build", concepts, "--output", str(corpus), "--source", "real"]
    lines = []
    with subprocess.Popen([*command, "--budget", budget], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode not in FINISHED or not corpus.is_dir():
        raise SystemExit(process.returncode)
    return reasons("".join(lines))


def reasons(printed: str) -> dict[str, str]:
    """Return why a concept was not built, by concept, from what `corpus build` printed."""
    return dict(_LACKING.findall(printed))


def built(corpus: Path) -> list[str]:
    """Return the concepts of a corpus folder."""
    return sorted(path.name for path in corpus.iterdir() if path.is_dir() and not path.name.startswith("."))


def measure(runs: Path, concepts: list[str], budget: str, strategies: str, limit: int | None) -> int:
    """Run strategies on the concepts of `runs`/corpus; return the exit code."""
    command = [str(DRIVER), "run", "--preset", budget, "--corpus", str(runs / "corpus"), "--output", str(runs)]
    command += ["--concepts", ",".join(concepts), "--strategies", strategies]
    command += [] if limit is None else ["--limit", str(limit)]
    return subprocess.run(command, check=False).returncode
