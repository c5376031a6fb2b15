"""Build the corpora of the real-text archives, and run on them, with the commands that users type."""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from recipes.annotator.archive import archive_folder

from poolbench.errors import ConfigError
from poolbench.settings import ClusterSettings
from poolbench.statuses import RunState
from poolbench_corpora.real import ARCHIVES_VARIABLE
from poolbench_driver.records import RunFolder, find_run

DRIVER = Path(sys.executable).with_name("poolbench-driver")
#: Exit codes of commands that wrote what they could: done, and done with failures.
FINISHED = (0, 1)
_LACKING = re.compile(r"^(\w+) \(\d+ of \d+\) \.\.\. none: (.+)$", re.MULTILINE)


def build(corpus: Path, budget: str, concepts: str, windows: Iterable[str | None]) -> dict[str, str]:
    """Build the corpora into a folder; return why a concept was not built in any window, by concept.

    Args:
        concepts: Ids with commas, or `all`.
        windows: Lengths of a passage in words, tried in this order; None is the concept's own.

    Raises:
        SystemExit: The command failed, with its exit code.
    """
    lacking = dict[str, str]()
    for window in windows:
        lacking = _build(corpus, budget, ",".join(lacking) or concepts, window)
        if not lacking:
            break
    return lacking


def _build(corpus: Path, budget: str, concepts: str, window: str | None) -> dict[str, str]:
    command = [str(DRIVER), "corpus", "build", concepts, "--output", str(corpus), "--source", "real"]
    command += ["--budget", budget, *([] if window is None else ["--window", window])]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    lacking = reasons("".join(lines))
    if process.returncode not in FINISHED and not lacking:
        raise SystemExit(process.returncode)
    return lacking


def reasons(printed: str) -> dict[str, str]:
    """Return why a concept was not built, by concept, from what `corpus build` printed."""
    return dict(_LACKING.findall(printed))


def built(corpus: Path) -> list[str]:
    """Return the concepts of a corpus folder."""
    return sorted(path.name for path in corpus.iterdir() if path.is_dir() and not path.name.startswith("."))


def ready() -> Path:
    """Return the folder of the archives. Raise ConfigError if it is absent, or no cluster runs."""
    archives = archive_folder()
    if not archives.is_dir():
        raise ConfigError(f"no real-text archives at {archives}; name their folder in {ARCHIVES_VARIABLE}")
    ClusterSettings.load()
    return archives


def measure(runs: Path, *options: str) -> RunFolder:
    """Run with options of the command, and return the run. Raise SystemExit if it failed or was cancelled."""
    code = subprocess.run([str(DRIVER), "run", "--output", str(runs), *options], check=False).returncode
    if code not in FINISHED:
        raise SystemExit(code)
    run = find_run(runs, "latest")
    if run.read_state().get("state") == RunState.CANCELLED:
        print(f"{run.id} was cancelled; the same command continues")
        raise SystemExit(code)
    return run


def export(run: RunFolder, output: Path, concept: str, strategy: str, layer: int) -> Path:
    """Export the directions of a concept; return the file of one of them."""
    command = [str(DRIVER), "export", "directions", run.id, "--runs", str(run.path.parent), "--output", str(output)]
    subprocess.run([*command, "--concepts", concept], check=True)
    (file,) = output.glob(f"*/layer_{layer}/{concept}__{strategy}.npy")
    return file
