"""What a check has found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from poolbench.errors import PoolbenchError
from poolbench_driver.doctor.fitness import described_clock


class Level(StrEnum):
    """How bad it is. Only failures change the exit code."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warn"
    FAILURE = "FAIL"


@dataclass(frozen=True)
class Finding:
    """The result of one check: what was looked at, and what is wrong and what to do."""

    check: str
    level: Level = Level.OK
    message: str = ""

    @property
    def line(self) -> str:
        """Return the finding for people."""
        return f"{self.level:<5} {self.check}{': ' if self.message else ''}{self.message}"


def checked(check: str, look: Callable[[], object]) -> Finding:
    """Return whether `look` succeeds; its error is the message."""
    try:
        look()
    except (PoolbenchError, OSError) as error:
        return Finding(check, Level.FAILURE, str(error))
    return Finding(check)


_GIB = 2**30
#: Below this much free space, runs fail soon, or may fail.
_LEAST_GIB, _LITTLE_GIB = 1, 5


def free_space(where: str, free_bytes: int) -> Finding:
    """Return whether there is enough free space."""
    free_gib = free_bytes / _GIB
    level = Level.FAILURE if free_gib < _LEAST_GIB else Level.WARNING if free_gib < _LITTLE_GIB else Level.OK
    message = f"{free_gib:.1f} GiB are free"
    advice = f"; at least {_LITTLE_GIB} are advised: `poolbench-driver gc --delete` frees some"
    return Finding(f"disk of {where}", level, message + advice * (level is not Level.OK))


def free_bytes_at(path: Path) -> int:
    """Return the free space in the file system of a path, which need not exist."""
    return shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.exists())).free


def clock(whose: str, difference_s: float) -> Finding:
    """Return whether a clock agrees with that of the object store; `difference_s` is how far it is ahead."""
    message = described_clock(difference_s)
    return Finding(f"clock of {whose}", Level.WARNING if message else Level.OK, message)
