"""Strategies by concepts: the heat maps of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from poolbench.contracts import Row
from poolbench_driver.contract.metrics import metric_info
from poolbench_driver.contract.page import NUM_SHADES, Cell, Group, Line, Part, Table
from poolbench_driver.pages.cells import number

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
    """Return the mean of a metric over layers by strategy and concept; a cell of value `neutral` has no shade."""
    metric_rows = [row for row in rows if row["metric"] == metric]
    concepts = sorted({row["concept"] for row in metric_rows})
    values = [row["value"] for row in metric_rows if row["value"] is not None]
    reach = max((abs(value - neutral) for value in values), default=1.0) or 1.0
    by_cell: dict[tuple[str, str], list[Row]] = {}
    for row in metric_rows:
        by_cell.setdefault((row["strategy"], row["concept"]), []).append(row)
    strategies = [name for name in order if any((name, concept) in by_cell for concept in concepts)]
    lines = [
        Line.of(name, *(_cell(by_cell.get((name, concept), []), neutral, reach) for concept in concepts))
        for name in strategies
    ]
    return Table.of(["strategy", *concepts], lines, metric, metric_info(metric).summary)


def _cell(rows: Sequence[Row], neutral: float, reach: float) -> Cell:
    """Return the mean of the values; blue above neutral, orange below, as strong as its share of the `reach`."""
    if not rows:
        return Cell(note="not measured")
    values = [row["value"] for row in rows if row["value"] is not None]
    note = "; ".join(_describe(row) for row in rows)
    if not values:
        return Cell(rows[0]["status"].replace("_", " "), note=note)
    share = (fmean(values) - neutral) / reach
    shade = min(NUM_SHADES, 1 + int(abs(share) * NUM_SHADES))
    return replace(number(fmean(values), "z.2f", note), shade=shade if share >= 0 else -shade)


def _describe(row: Row) -> str:
    layer = f"layer {row['layer']}: " if row["layer"] is not None else ""
    if row["value"] is None:
        return f"{layer}{row['status']} ({row['reason']})"
    interval = f" [{row['ci_low']:.3f}, {row['ci_high']:.3f}]" if row["ci_low"] is not None else ""
    return f"{layer}{row['value']:z.3f}{interval}"
