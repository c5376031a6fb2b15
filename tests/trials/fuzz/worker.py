"""`python -m tests.trials.fuzz.worker PLAN`: read cases one after the other, in a process that may die of them."""

import importlib
import json
import os
import random
import resource
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.trials.fuzz.guard import CANARY, SECRETS, Guard

from poolbench.errors import PoolbenchError

#: Memory that cases may take beyond what the process has when it begins, so that no file can fill the machine.
_MEMORY_BYTES = 2 << 30
_WARM_CASES = 3
#: File with the target and the number of the case that is read; before the first and after the last, there is none.
PROGRESS, NO_CASE = "progress", (-1, -1)
Make = Callable[[random.Random], bytes]
Read = Callable[[bytes, Path], None]


@dataclass(frozen=True)
class Target:
    """One kind of message or file.

    Attributes:
        name: What is read.
        make: Makes the bytes of a case.
        read: Puts the bytes where the project reads them, in a folder of the case's own, and reads them.
        allowed: Exceptions that the readers announce. Others would be a traceback.
    """

    name: str
    make: Make
    read: Read
    allowed: tuple[type[Exception], ...] = (PoolbenchError,)


def case_rng(seed: int, target: str, number: int) -> random.Random:
    """Return the random numbers of one case."""
    return random.Random(f"{seed}/{target}/{number}")


def load_targets(modules: list[str]) -> list[Target]:
    """Return the targets of modules, in order."""
    return [target for name in modules for target in importlib.import_module(name).TARGETS]


def main() -> None:
    """Read the cases of a plan: a JSON object in a file."""
    plan: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    root = Path(plan["folder"])
    os.environ.update(SECRETS)
    targets = load_targets(plan["modules"])
    (root / "outside").mkdir(exist_ok=True)
    (root / "outside" / "canary").write_text(CANARY)
    (root / "cases").mkdir(exist_ok=True)
    guard, progress = Guard(root / "cases"), os.open(root / PROGRESS, os.O_WRONLY)
    warm: set[int] = set()
    _limit_memory()
    with (root / "findings.jsonl").open("a") as findings:
        for target, number in plan["cases"]:
            _record(progress, target, number)
            if target not in warm:
                warm.add(target)
                _warm_up(targets[target], plan["seed"], number, root / "cases" / "warm")
            for found in _read(targets[target], plan["seed"], number, root / "cases" / "case", guard):
                findings.write(json.dumps({"target": target, "number": number, "found": found}) + "\n")
                findings.flush()
    _record(progress, *NO_CASE)


def _record(progress: int, target: int, number: int) -> None:
    """Say which case is read now, also to a parent that finds this process dead."""
    os.pwrite(progress, f"{target:20} {number:20}".encode(), 0)


def _read(target: Target, seed: int, number: int, folder: Path, guard: Guard) -> list[str]:
    """Read one case. Return what was wrong."""
    data = target.make(case_rng(seed, target.name, number))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    said, wrong = "", []
    guard.start()
    try:
        target.read(data, folder)
    except target.allowed as error:
        said = str(error)
    except BaseException as error:  # also SystemExit and panics of Rust
        said = str(error)
        wrong.append(f"{type(error).__name__}: {said[:300]} {_place()}")
    return [*wrong, *guard.stop(said)]


def _place() -> str:
    """Return the last lines of the project that an exception passed."""
    frames = traceback.extract_tb(sys.exc_info()[2])
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[::-1][:5])


def _warm_up(target: Target, seed: int, number: int, folder: Path) -> None:
    """Read cases of a target unwatched, because readers import modules late."""
    for each in range(number, number + _WARM_CASES):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            target.read(target.make(case_rng(seed, target.name, each)), folder)
        except Exception:  # it is read again, and then counts
            continue


def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + _MEMORY_BYTES, most))


if __name__ == "__main__":
    main()
