"""What a check of an official table found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Meaning(StrEnum):
    """What a disagreement of a check means."""

    COPY = "the copy is damaged"  # the source agrees with itself here
    SOURCE = "the source disagrees with itself"
    ROUNDING = "the source tested unrounded cells"


@dataclass(frozen=True)
class Disagreement:
    """A figure of the table, and the one that its own cells give."""

    where: str
    theirs: Any
    ours: Any
    why: str = ""


@dataclass(frozen=True)
class Check:
    """One kind of figure, compared with what the cells give."""

    name: str
    num_compared: int
    disagreements: tuple[Disagreement, ...] = ()
    meaning: Meaning = Meaning.SOURCE
