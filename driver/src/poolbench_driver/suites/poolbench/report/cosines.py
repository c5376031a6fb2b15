"""Parallel directions on the page: each strategy's nearest, and one matrix per layer and construction."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from poolbench.contracts import Row
from poolbench_driver.suites.poolbench.measures.cosines import CosineBoard, cosine_board

#: The construction and layer that is shown first.
Key = tuple[str, int]

PRIMARY = "C1"
#: Shades of a matrix: a cosine from the first bound on has the class `k1`, and so on; `n` is clearly negative.
SHADES = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
NEGATIVE = -0.2


@dataclass(frozen=True)
class CosineMatrix:
    """The lower half of a matrix without its diagonal: one line per strategy, of texts and shades."""

    direction: str
    layer: int
    lines: list[tuple[str, list[tuple[str, str]]]]
    without: dict[str, str]


@dataclass(frozen=True)
class CosinesView:
    """The part of the page about parallel directions."""

    known: bool = False  # whether the run has the table
    shown: CosineMatrix | None = None  # C1 at the steering layer, or the first; None if nothing can be compared
    others: list[CosineMatrix] = field(default_factory=list)
    nearest: list[Row] = field(default_factory=list)  # one line per strategy, in the order of `shown`
    groups: list[list[str]] = field(default_factory=list)  # strategies with nearly equal directions in `shown`


def build_cosines(rows: Sequence[Row] | None, steered: int | None) -> CosinesView:
    """Return the view of the rows of `cosines.parquet`, which are None if the run has no such table."""
    if rows is None:
        return CosinesView()
    parts: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        parts[row["direction"], row["layer"]].append(row)
    boards = {key: board for key in sorted(parts) if (board := cosine_board(parts[key])).strategies}
    first = _first(boards, steered)
    if first is None:
        return CosinesView(known=True)
    return CosinesView(
        known=True,
        shown=_matrix(first, boards[first]),
        others=[_matrix(key, board) for key, board in boards.items() if key != first],
        nearest=_nearest(boards[first], boards.get(("C3", first[1]))),
        groups=boards[first].groups(),
    )


def _first(boards: Mapping[Key, CosineBoard], steered: int | None) -> Key | None:
    keys = [key for key in boards if key[0] == PRIMARY]
    return next((key for key in keys if key[1] == steered), next(iter(keys), None))


def _matrix(key: Key, board: CosineBoard) -> CosineMatrix:
    lines = [(name, [_cell(value) for value in board.mean_SS[k, :k]]) for k, name in enumerate(board.strategies)]
    return CosineMatrix(*key, lines, board.without)


def _cell(value: float) -> tuple[str, str]:
    """Return text and shade of a mean cosine."""
    if math.isnan(value):
        return "\N{EN DASH}", "null"
    if value <= NEGATIVE:
        return short(value), "n"
    level = bisect_right(SHADES, value)
    return short(value), f"k{level}" if level else ""


def short(value: float) -> str:
    """Return two decimals without the leading zero, so that twenty columns fit."""
    return f"{value:z.2f}".replace("0.", ".", 1)


def _nearest(board: CosineBoard, by_probe: CosineBoard | None) -> list[Row]:
    """Return each strategy's most parallel other, their least parallel concept, and the same pair's C3."""
    lines = []
    for name in board.strategies:
        other, cosine = board.nearest(name) or ("", None)
        lowest = board.lowest.get((name, other))
        lines.append(
            {"strategy": name, "other": other, "cosine": cosine, "lowest": lowest, "C3": _of(by_probe, name, other)}
        )
    return lines


def _of(board: CosineBoard | None, strategy: str, other: str) -> float | None:
    if board is None or not {strategy, other} <= set(board.strategies):
        return None
    value = float(board.mean_SS[board.strategies.index(strategy), board.strategies.index(other)])
    return None if math.isnan(value) else value
