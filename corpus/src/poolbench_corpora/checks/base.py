"""The registry of checks, and what every check reads and returns."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from poolbench.concepts import Concept
from poolbench.contracts import Row


@dataclass(frozen=True)
class Finding:
    """One broken rule, with a few ids of the passages concerned."""

    concept: str
    rule: str
    message: str
    passages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Corpus:
    """The passages of one concept, as the checks read them."""

    concept: Concept
    window: tuple[int, int]
    rows: tuple[Row, ...]

    def where(self, **values: Any) -> list[Row]:
        """Return the rows with these values."""
        return [row for row in self.rows if all(row[name] == value for name, value in values.items())]

    def pairs(self) -> dict[str, list[Row]]:
        """Return the rows by pair id."""
        return grouped((row for row in self.rows if row["pair_id"] is not None), "pair_id")

    def finding(self, rule: str, message: str, rows: Iterable[Row] = ()) -> Finding:
        """Return a finding about some rows."""
        return Finding(self.concept.id, rule, message, tuple(row["passage_id"] for row in rows)[:5])


Check = Callable[[Corpus], Iterator[Finding]]
CHECKS: dict[str, Check] = {}


def rule(check: Check) -> Check:
    """Register a check under its function's name."""
    CHECKS[check.__name__] = check
    return check


def grouped(rows: Iterable[Row], column: str) -> dict[str, list[Row]]:
    """Group rows by the value of a column, in order of first appearance."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[column]].append(row)
    return dict(groups)
