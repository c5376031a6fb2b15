"""Parallel directions on the page: each strategy's nearest, and one matrix per layer and construction."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from poolbench.contracts import Row
from poolbench.grouping import grouped
from poolbench_driver.contract.metrics import metric_info
from poolbench_driver.contract.page import NUM_SHADES, Block, Cell, Column, Details, Group, Line, Part, Prose, Table
from poolbench_driver.measures.cosines import SAME, CosineBoard, cosine_board
from poolbench_driver.pages.plain import number
from poolbench_driver.suites.poolbench.report.board import mean_path

#: The construction and layer that is shown first.
Key = tuple[str, int]

PRIMARY = "C1"
#: Shades of a matrix: a cosine from the first bound on has shade 1, and so on.
SHADES = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
NEGATIVE = -0.2


def cosine_part(rows: Sequence[Row] | None, steered: int | None) -> Part:
    """Return the part of the page about strategies with nearly parallel directions.

    Args:
        rows: Rows of `cosines.parquet`, or None if the run has no such table.
        steered: The layer that is steered, which comes first on the page. None if the run does not steer.
    """
    blocks = [Prose("The run has no `cosines.parquet`.")] if rows is None else cosine_blocks(rows, steered)
    note = "" if isinstance(blocks[-1], Prose) else (
        "Cosine of two strategies' unit directions, mean over the concepts in which both have one (C1: difference of "
        "the class means; C3: weights of the probe). At 1 they are one strategy under two names, at 0 they have "
        "nothing in common. Similar strategies stand beside each other. `cosines.parquet` has every concept, layer and "
        "pair."
    )  # fmt: skip
    return Part("cosines", "Which strategies point the same way", blocks, "Same direction", note)


def cosine_blocks(rows: Sequence[Row], steered: int | None) -> list[Block]:
    """Return groups of strategies with nearly equal directions, and the matrices of cosines.

    The matrix of C1 at the steering layer, or else at the first layer, comes first. All other matrices are folded.
    """
    parts = grouped(((row["direction"], row["layer"]), row) for row in rows)
    boards = {key: board for key in sorted(parts) if (board := cosine_board(parts[key])).strategies}
    keys = [key for key in boards if key[0] == PRIMARY]
    first = next((key for key in keys if key[1] == steered), next(iter(keys), None))
    if first is None:
        return [Prose("Nothing to compare: fewer than two strategies have a direction.")]
    blocks: list[Block] = []
    if groups := boards[first].groups():
        names = "; ".join(", ".join(group) for group in groups)
        blocks.append(Prose(f"Nearly equal, every pair at {SAME:.2f} or more ({first[0]}, layer {first[1]}): {names}."))
    blocks.append(Group([_matrix(first, boards[first]), _nearest(first, boards)]))
    if others := [_matrix(key, board) for key, board in boards.items() if key != first]:
        blocks.append(Details("Other layers and constructions", [Group(others)]))
    return blocks


def _matrix(key: Key, board: CosineBoard) -> Table:
    """Return the lower half of a matrix without its diagonal."""
    lines = [
        Line.of(f"{k + 1} {name}", *(_cell(value) for value in board.mean_SS[k, :k]))
        for k, name in enumerate(board.strategies)
    ]
    numbers = [Column(str(k), definition=name) for k, name in enumerate(board.strategies[:-1], 1)]
    note = f"layer {key[1]}; columns bear the numbers of the lines"
    if board.without:
        note += ". No direction: " + ", ".join(f"{name} ({status})" for name, status in board.without.items())
    return Table([Column("strategy"), *numbers], lines, key[0], note, "dense")


def _cell(value: float) -> Cell:
    """Return the cell of a mean cosine, shaded by its value. NaN becomes a dash."""
    if math.isnan(value):
        return Cell("\N{EN DASH}")
    shade = -NUM_SHADES // 2 if value <= NEGATIVE else bisect_right(SHADES, value)
    return Cell(short(value), float(value), shade=shade)


def short(value: float) -> str:
    """Return two decimals without the leading zero, so that twenty columns fit."""
    return f"{value:z.2f}".replace("0.", ".", 1)


def _nearest(key: Key, boards: Mapping[Key, CosineBoard]) -> Table:
    """Return a table of each strategy's most parallel other strategy.

    Each line also has the concept in which the pair is least parallel, and the cosine of the pair's C3 directions.
    """
    direction, layer = key
    board, by_probe = boards[key], boards.get(("C3", layer))
    lines = []
    for name in board.strategies:
        other, cosine = board.nearest(name) or ("", None)
        lowest = board.lowest.get((name, other))
        least = Cell(f"{lowest[1]} {lowest[0]:.3f}", lowest[0]) if lowest else Cell()
        lines.append(Line.of(name, other, number(cosine, "z.4f"), least, number(_of(by_probe, name, other), "z.4f")))
    columns = [Column("strategy"), Column("nearest", is_text=True), *map(Column, (direction, "lowest concept", "C3"))]
    return Table(columns, lines, "Nearest", f"the most parallel other strategy at layer {layer}", "dense")


def _of(board: CosineBoard | None, strategy: str, other: str) -> float | None:
    if board is None or not {strategy, other} <= set(board.strategies):
        return None
    value = float(board.mean_SS[board.strategies.index(strategy), board.strategies.index(other)])
    return None if math.isnan(value) else value


#: Heat maps of the page: metric, and the value at which colour is neutral.
HEAT_MAPS = (
    ("d1.auroc", 0.5),
    ("d1.auroc_test", 0.5),
    ("d2.best_gain", 0.0),
    ("d2.response_area.excess", 0.0),
    ("d3.robust_ld", 0.0),
    ("d3.robust_lc", 0.0),
)


def heat_map_part(rows: Sequence[Row], order: Sequence[str]) -> Part:
    """Return the heat maps of a run, with strategies in `order`, the first on top."""
    tables = [heat_map(rows, metric, neutral, order) for metric, neutral in HEAT_MAPS]
    note = (
        "Means over layers where there are several; point at a cell for each layer's value and interval. Blue is above "
        "chance or zero, orange below."
    )
    return Part("maps", "Concept by strategy", [Group([table for table in tables if table.lines])], "Concepts", note)


def heat_map(rows: Sequence[Row], metric: str, neutral: float, order: Sequence[str]) -> Table:
    """Return a table of the mean of a metric over layers, by strategy and concept.

    Cells are shaded by the difference of their value from `neutral`.
    """
    metric_rows = [row for row in rows if row["metric"] == metric]
    concepts = sorted({row["concept"] for row in metric_rows})
    values = [row["value"] for row in metric_rows if row["value"] is not None]
    reach = max((abs(value - neutral) for value in values), default=1.0) or 1.0
    by_cell = grouped(((row["strategy"], row["concept"]), row) for row in metric_rows)
    strategies = [name for name in order if any((name, concept) in by_cell for concept in concepts)]
    lines = [
        Line.of(name, *(_heat_cell(by_cell.get((name, concept), []), neutral, reach) for concept in concepts))
        for name in strategies
    ]
    return Table.of(["strategy", *concepts], lines, metric, metric_info(metric).summary)


def _heat_cell(rows: Sequence[Row], neutral: float, reach: float) -> Cell:
    """Return the mean of the values, shaded blue above `neutral` and orange below.

    The shade grows with the difference from `neutral`. `reach` is the largest difference in the table.
    """
    if not rows:
        return Cell(note="not measured")
    values = [row["value"] for row in rows if row["value"] is not None]
    note, opens = "; ".join(_describe(row) for row in rows), mean_path(rows)
    if not values:
        return Cell(rows[0]["status"].replace("_", " "), note=note, opens=opens)
    share = (fmean(values) - neutral) / reach
    shade = min(NUM_SHADES, 1 + int(abs(share) * NUM_SHADES))
    return replace(number(fmean(values), "z.2f", note), shade=shade if share >= 0 else -shade, opens=opens)


def _describe(row: Row) -> str:
    layer = f"layer {row['layer']}: " if row["layer"] is not None else ""
    if row["value"] is None:
        return f"{layer}{row['status']} ({row['reason']})"
    interval = f" [{row['ci_low']:.3f}, {row['ci_high']:.3f}]" if row["ci_low"] is not None else ""
    return f"{layer}{row['value']:z.3f}{interval}"
