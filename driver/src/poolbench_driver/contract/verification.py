"""What was checked of a run by one who was not there, stage by stage, and how figures are compared."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from poolbench.contracts import Row
from poolbench.statuses import Status

#: Differences up to this are those of rounding; the digest of results keeps as many decimals.
ROUNDING = 1e-6
#: Problems of a stage that a report names.
MOST_PROBLEMS = 5
_CELL = ("metric", "strategy", "concept", "layer", "neighbour", "direction")
#: Takes a line on what is being checked.
Say = Callable[[str], object]


class State(StrEnum):
    """The outcome of a stage of verification."""

    PASSED = "passed"
    FAILED = "failed"
    UNCHECKED = "cannot be checked"


@dataclass(frozen=True)
class Check:
    """One stage of a verification: the compared figures, or the reason why it failed or compared nothing."""

    stage: str
    state: State
    note: str

    @classmethod
    def of(cls, stage: str, problems: Sequence[str], note: str = "") -> Self:
        """Return a stage that failed with these problems, or passed without any."""
        if not problems:
            return cls(stage, State.PASSED, note)
        more = f"; and {len(problems) - MOST_PROBLEMS} more" if len(problems) > MOST_PROBLEMS else ""
        return cls(stage, State.FAILED, "; ".join(problems[:MOST_PROBLEMS]) + more)


def compared(stage: str, rows: Sequence[Row], again: Iterable[Row], metrics: Callable[[str], bool]) -> Check:
    """Check result rows against rows that were computed again from the scores.

    Args:
        rows: The result rows of the stage's family of figures.
        again: The recomputed rows. Cells that they lack must be null in `rows`, and their values need a row in `rows`.
        metrics: Returns whether figures of a metric can be computed again. Figures of other metrics are only counted.
    """
    by_cell = {tuple(map(row.get, _CELL)): row for row in again}
    problems, others, count = list[str](), Counter[str](), 0
    for row in rows:
        if not metrics(row["metric"]):
            others[".".join(row["metric"].split(".")[:2])] += 1
            continue
        count += 1
        if row["status"] == Status.FAILED:  # a task of it failed, whatever scores there are
            continue
        ours = by_cell.get(tuple(map(row.get, _CELL)), {"value": None, "status": row["status"]})
        if difference := differs(row, ours):
            problems.append(f"{named(row)}: {difference}")
    stored = {tuple(map(row.get, _CELL)) for row in rows}
    problems += [
        f"{named(ours)} has no row"
        for cell, ours in by_cell.items()
        if ours["value"] is not None and ours["metric"].startswith(f"{stage}.") and cell not in stored
    ]
    more = f"; {others.total()} more need more than scores ({', '.join(sorted(others))})" if others else ""
    return Check.of(stage, problems, f"{count} figures are what their scores give{more}")


def named(row: Mapping[str, Any]) -> str:
    """Return the metric of a row and the values that identify its cell."""
    return ", ".join(str(row[name]) for name in _CELL[:5] if row.get(name) is not None)


def differs(row: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Return how value, interval, number of items or status differ from ours, or "" if they are equal."""
    of_values = ("value", "ci_low", "ci_high", "n", "num_groups")
    names = of_values if None not in (row["value"], ours["value"]) else ("value", "status")
    differing = (name for name in names if not is_close(row.get(name), ours.get(name)))
    return next((f"{name} is {row.get(name)}, and computed again {ours.get(name)}" for name in differing), "")


def is_close(first: Any, second: Any) -> bool:
    """Return whether two values are equal. Floats may differ by rounding."""
    if isinstance(first, float) and isinstance(second, float):
        return first == second or abs(first - second) <= ROUNDING * max(1.0, abs(second))
    return bool(first == second)
