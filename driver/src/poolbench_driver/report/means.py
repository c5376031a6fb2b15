"""Tables of means over concepts and layers: the text of one cell, and the rows that it is of."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

Row = dict[str, Any]

#: Rows by strategy and column.
Cells = Mapping[tuple[str, str], list[Row]]


@dataclass(frozen=True)
class MeansTable:
    """A line a strategy.

    Attributes:
        heads: Of the columns after the strategy.
        lines: Strategy and its cells, each a number or why there is none.
        groups: Metrics with the heads below them, where a metric has several columns.
        notes: What a reader must know of single columns.
    """

    heads: list[str]
    lines: list[tuple[str, list[str]]]
    groups: list[tuple[str, list[str]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> list[str]:
        """The heads of the groups."""
        return [metric for metric, _ in self.groups]

    @property
    def full_heads(self) -> list[str]:
        """Heads that need no second line."""
        return [f"{group} {head}" for group, heads in self.groups for head in heads] or self.heads


def mean_text(rows: Iterable[Row], digits: int = 3) -> str:
    """Mean of the values that exist, with how many of the cells those are; or the commonest status."""
    cells = list(rows)
    values = [row["value"] for row in cells if row["value"] is not None]
    if not values:
        return Counter(row["status"] for row in cells).most_common(1)[0][0] if cells else ""
    share = "" if len(values) == len(cells) else f" ({len(values)}/{len(cells)})"
    return f"{fmean(values):z.{digits}f}{share}"


def mean_value(rows: Sequence[Row]) -> float | None:
    """Mean of the values that exist, if any."""
    values = [row["value"] for row in rows if row["value"] is not None]
    return fmean(values) if values else None


def by_strategy(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows by strategy and metric; those of no strategy are left out."""
    cells: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["strategy"]:
            cells[row["strategy"], row["metric"]].append(row)
    return dict(cells)
