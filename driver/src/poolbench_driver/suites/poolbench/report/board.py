"""The first screen of a report: what each strategy reaches, with intervals, for its table and its picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from poolbench.contracts import Row
from poolbench_driver.pages.boards.ranks import strategy_families
from poolbench_driver.pages.drawing import bars
from poolbench_driver.suites.poolbench.report.answer import QUESTIONS, SEPARATION, Best
from poolbench_driver.suites.poolbench.report.means import by_strategy


@dataclass(frozen=True)
class Figure:
    """The mean of a metric over concepts and layers, with the mean limits of the 95 % intervals of its cells.

    The limits are those of the value itself where some cell has no interval, so that none is drawn.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Entrant:
    """A strategy on the board."""

    strategy: str
    family: str  # empty where the strategy is not registered here
    figures: Mapping[str, Figure]  # by metric, where it has a value
    tied: bool  # whether it is the best strategy of the board, or the best one does not beat it
    reason: str  # why it has no D1


@dataclass(frozen=True)
class Board:
    """All strategies, in the order of their mean rank on D1, and those that the answer names, by metric."""

    entrants: Sequence[Entrant]
    best: Mapping[str, str]

    def drawn(self) -> dict[str, dict[str, tuple[float, float, float]]]:
        """Return by metric and strategy the ends and the middle of a drawn interval, on the metric's common scale."""
        drawn = {}
        for metric in QUESTIONS:
            figures = {
                entrant.strategy: entrant.figures[metric] for entrant in self.entrants if metric in entrant.figures
            }
            ends = bars([{"value": one.value, "ci_low": one.low, "ci_high": one.high} for one in figures.values()])
            drawn[metric] = {name: bar for name, bar in zip(figures, ends, strict=True) if bar is not None}
        return drawn


def build_board(rows: Iterable[Row], order: Sequence[str], found: Mapping[str, Best | None]) -> Board:
    """Return the board of a run's rows, with strategies in `order`, and with the best ones that were found."""
    cells, families = by_strategy(row for row in rows if row["metric"] in QUESTIONS), strategy_families(order)
    best = {metric: of for metric, purpose in QUESTIONS.items() if (of := found.get(purpose)) is not None}
    leading = best.get(SEPARATION)
    tied = set() if leading is None or leading.unsure or leading.limit else {leading.strategy, *leading.tied}
    entrants = []
    for name in order:
        figures = {
            metric: figure for metric in QUESTIONS if (figure := _figure(cells.get((name, metric), ()))) is not None
        }
        reason = "" if SEPARATION in figures else _reason(cells.get((name, SEPARATION), ()))
        entrants.append(Entrant(name, families.get(name, ""), figures, name in tied, reason))
    return Board(entrants, {metric: of.strategy for metric, of in best.items()})


def _figure(rows: Iterable[Row]) -> Figure | None:
    value_rows = [row for row in rows if row["value"] is not None]
    if not value_rows:
        return None
    value = fmean(row["value"] for row in value_rows)
    if any(row["ci_low"] is None for row in value_rows):
        return Figure(value, value, value)
    return Figure(value, *(fmean(row[name] for row in value_rows) for name in ("ci_low", "ci_high")))


def _reason(rows: Iterable[Row]) -> str:
    return next(
        (f"{row['status']}: {row['reason']}" if row["reason"] else row["status"] for row in rows), "not measured"
    )
