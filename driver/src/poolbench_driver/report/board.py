"""The first screen of a report: what each strategy reaches, with intervals, for its table and its picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from poolbench.pooling.registry import STRATEGIES
from poolbench.suites import RankBoard
from poolbench_driver.report.means import by_strategy

Row = dict[str, Any]

#: The two questions of a run: what a probe separates, and what steering adds to a text.
SEPARATION, GAIN = "d1.auroc", "d2.best_gain"
#: Length of a drawn interval in pixels.
_LENGTH, _MARGIN = 110, 6
FAMILIES = ("position", "uniform", "window", "saliency", "linguistic")


@dataclass(frozen=True)
class Figure:
    """The mean of a metric over concepts and layers, with the means of the limits of its 95 % intervals."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Entrant:
    """A strategy on the board.

    Attributes:
        family: Of `FAMILIES`, or `other`.
        figures: By metric, where it has a value.
        tied: Whether it is the best strategy of the board, or the best one does not beat it.
        reason: Why it has no D1.
    """

    strategy: str
    family: str
    figures: Mapping[str, Figure]
    tied: bool
    reason: str


@dataclass(frozen=True)
class Board:
    """All strategies, in the order of their mean rank on D1, and those that the answer names, by metric."""

    entrants: Sequence[Entrant]
    best: Mapping[str, str]

    def drawn(self) -> dict[str, dict[str, tuple[float, float, float]]]:
        """Return by metric and strategy the ends and the middle of a drawn interval, on the metric's common scale."""
        return {metric: self._scaled(metric) for metric in (SEPARATION, GAIN)}

    def _scaled(self, metric: str) -> dict[str, tuple[float, float, float]]:
        found = {each.strategy: each.figures[metric] for each in self.entrants if metric in each.figures}
        if not found:
            return {}
        lowest, highest = min(one.low for one in found.values()), max(one.high for one in found.values())
        span = (highest - lowest) or 1.0

        def at(value: float) -> float:
            return round(_MARGIN + (_LENGTH - 2 * _MARGIN) * (value - lowest) / span, 1)

        return {name: (at(one.low), at(one.value), at(one.high)) for name, one in found.items()}


def build_board(rows: Iterable[Row], order: Sequence[str], boards: Mapping[str, RankBoard]) -> Board:
    """Return the board of a run's rows, with strategies in `order`."""
    cells = by_strategy(row for row in rows if row["metric"] in (SEPARATION, GAIN))
    best = {metric: boards[metric].strategies[0] for metric in (SEPARATION, GAIN) if metric in boards}
    tied = _tied(boards.get(SEPARATION))
    entrants = []
    for name in order:
        figures = {
            metric: figure
            for metric in (SEPARATION, GAIN)
            if (figure := _figure(cells.get((name, metric), ()))) is not None
        }
        reason = "" if SEPARATION in figures else _reason(cells.get((name, SEPARATION), ()))
        entrants.append(Entrant(name, _family(name), figures, name in tied, reason))
    return Board(entrants, best)


def _tied(board: RankBoard | None) -> set[str]:
    """Return the best strategy and those within the critical difference of it."""
    if board is None or board.summary["critical_difference"] is None:
        return set()
    best = board.strategies[0]
    return next((set(group) for group in board.summary["tie_groups"] if best in group), {best})


def _figure(rows: Iterable[Row]) -> Figure | None:
    known = [row for row in rows if row["value"] is not None]
    if not known:
        return None
    value = fmean(row["value"] for row in known)
    limits = [
        fmean(row["value"] if row[name] is None else row[name] for row in known) for name in ("ci_low", "ci_high")
    ]
    return Figure(value, *limits)


def _reason(rows: Iterable[Row]) -> str:
    return next(
        (f"{row['status']}: {row['reason']}" if row["reason"] else row["status"] for row in rows), "not measured"
    )


def _family(name: str) -> str:
    known = {spec.id: spec.family for spec in STRATEGIES.all()}
    family = known.get(name.partition(":")[0], "")
    return family if family in FAMILIES else "other"
