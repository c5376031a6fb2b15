"""What a run needs and does not have, and the flag that replaces it. Nothing is replaced by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from poolbench.errors import ConfigError


@dataclass(frozen=True)
class Need:
    """One thing that a run needs."""

    what: str  # the thing, as one says it of what is not there
    found: bool  # whether it is there
    instead: str  # how to get it, and the flag that replaces it
    stops: bool = True  # whether the run cannot start without it
    nulls: tuple[str, ...] = ()  # metrics that are null without it

    def __str__(self) -> str:
        return f"{self.what}; {self.instead}"


def require_all(found: Iterable[Need]) -> None:
    """Raise ConfigError that names everything without which a run cannot start."""
    if stopping := list(dict.fromkeys(str(need) for need in found if need.stops)):
        raise ConfigError(f"the run cannot start, {len(stopping)} missing: {' | '.join(stopping)}")


def lines(found: Sequence[Need]) -> list[str]:
    """Return one line for each thing that is missing, each once."""
    marks = {True: "missing", False: "note"}
    return list(dict.fromkeys(f"{marks[need.stops]}: {need}" for need in found))
