"""The first screen of a report: what each strategy reaches, with intervals, for its table and its picture."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from poolbench.contracts import Row
from poolbench_driver.contract.page import Cell, Column, Line, Table
from poolbench_driver.pages.boards.ranks import RanksView, rank_text, strategy_families
from poolbench_driver.pages.drawing import COLOURS, VARIABLES
from poolbench_driver.suites.poolbench.metrics import BOARD
from poolbench_driver.suites.poolbench.report.answer import QUESTIONS, SEPARATION, Best
from poolbench_driver.suites.poolbench.report.means import by_strategy, mean_cell

#: Marker, sign and colour of each family; colour alone says nothing.
FAMILY_MARKS = {
    "position": ("o", "●", COLOURS[1]),
    "uniform": ("s", "■", COLOURS[0]),
    "window": ("^", "▲", COLOURS[2]),
    "saliency": ("D", "◆", COLOURS[3]),
    "linguistic": ("X", "✖", COLOURS[4]),
    "": ("P", "✚", COLOURS[5]),  # not registered here
}
#: Sign and colour variable of each family, for the page's text.
FAMILY_SIGNS = {name: (sign, VARIABLES[colour]) for name, (_, sign, colour) in FAMILY_MARKS.items()}


@dataclass(frozen=True)
class Entrant:
    """A strategy on the board."""

    strategy: str
    family: str  # empty where the strategy is not registered here
    figures: Mapping[str, Cell]  # by metric, where it has a value: means, with the mean limits of the intervals
    tied: bool  # whether it is the best strategy of the board, or the best one does not beat it
    reason: str  # why it has no D1


@dataclass(frozen=True)
class Board:
    """All strategies, in the order of their mean rank on D1, and those that the answer names, by metric."""

    entrants: Sequence[Entrant]
    best: Mapping[str, str]


def build_board(rows: Iterable[Row], order: Sequence[str], found: Mapping[str, Best | None]) -> Board:
    """Return the board of a run's rows, with strategies in `order`, and with the best ones that were found."""
    cells, families = by_strategy(row for row in rows if row["metric"] in QUESTIONS), strategy_families(order)
    best = {metric: of for metric, purpose in QUESTIONS.items() if (of := found.get(purpose)) is not None}
    leading = best.get(SEPARATION)
    tied = set() if leading is None or leading.unsure or leading.limit else {leading.strategy, *leading.tied}
    entrants = []
    for name in order:
        means = {metric: mean_cell(cells.get((name, metric), ())) for metric in QUESTIONS}
        figures = {metric: mean for metric, mean in means.items() if mean.value is not None}
        reason = "" if SEPARATION in figures else _reason(cells.get((name, SEPARATION), ()))
        entrants.append(Entrant(name, families.get(name, ""), figures, name in tied, reason))
    return Board(entrants, {metric: of.strategy for metric, of in best.items()})


def board_table(rows: Sequence[Row], board: Board, ranks: RanksView) -> Table:
    """Return the board: strategies with their mean rank and the mean of each metric; one concept has no ranks."""
    measured = {row["metric"] for row in rows}
    metrics = [metric for metric in BOARD.shown if metric in measured]
    heads = [Column(metric, has_intervals=metric in QUESTIONS) for metric in metrics]
    rank_head = [] if ranks.one_concept else ["mean rank (D1)"]
    cells = by_strategy(rows)
    by_rank = {row["strategy"]: row for row in rows if _is_rank(row)}
    lines = []
    for entrant in board.entrants:
        sign, colour = FAMILY_SIGNS.get(entrant.family, FAMILY_SIGNS[""])
        lines.append(
            Line.of(
                Cell(entrant.strategy, sign=sign, colour=colour, note=entrant.family),
                *([_rank_cell(by_rank.get(entrant.strategy))] if rank_head else []),
                *(mean_cell(cells.get((entrant.strategy, metric), ())) for metric in metrics),
                is_tied=entrant.tied,
                reason=entrant.reason,
            )
        )
    return Table.of(["strategy", *rank_head, *heads], lines, note=_note(ranks))


def _is_rank(row: Row) -> bool:
    return row["metric"] == "rank.mean" and json.loads(row["params"]) == {"of": SEPARATION, "board": "all"}


def _rank_cell(row: Row | None) -> Cell:
    if row is None:
        return Cell()
    ends = row["ci_low"], row["ci_high"]
    return Cell(rank_text(row["value"], ends), row["value"], *ends)


def _note(ranks: RanksView) -> str:
    sentences = [
        "Best D1 first; the mean value of each metric over layers, with intervals drawn on a common scale."
        if ranks.one_concept
        else "Mean rank over concepts on D1 (1 is best), with 95 % interval from a bootstrap over concepts; then the "
        "mean value of each metric over concepts and layers, with intervals drawn on a common scale."
    ]
    if not ranks.limit:
        sentences.append("The blue edge marks the best and what it does not beat.")
    return " ".join([*sentences, "A word in place of a number is why there is none."])


def _reason(rows: Iterable[Row]) -> str:
    return next(
        (f"{row['status']}: {row['reason']}" if row["reason"] else row["status"] for row in rows), "not measured"
    )
