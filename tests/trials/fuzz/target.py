"""A reader under fuzz: how its cases are made, and what it may raise."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from poolbench.errors import PoolbenchError

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
