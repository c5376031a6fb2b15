"""Strategies by concepts: the heat maps of the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from poolbench.contracts import Row
from poolbench_driver.contract.metrics import metric_info

#: Heat maps of the page: metric, and the value at which colour is neutral.
HEAT_MAPS = (
    ("d1.auroc", 0.5),
    ("d1.auroc_test", 0.5),
    ("d2.best_gain", 0.0),
    ("d2.response_area.excess", 0.0),
    ("d3.robust_ld", 0.0),
    ("d3.robust_lc", 0.0),
)


@dataclass(frozen=True)
class HeatCell:
    """One cell of a heat map: text, colour and tooltip."""

    text: str
    title: str
    colour: str = ""


@dataclass(frozen=True)
class HeatMap:
    """Strategies by concepts for one metric."""

    metric: str
    summary: str
    concepts: list[str]
    rows: list[tuple[str, list[HeatCell]]]


def heat_map(rows: Sequence[Row], metric: str, neutral: float, order: Sequence[str]) -> HeatMap:
    """Return the mean of a metric over layers by strategy and concept.

    Args:
        neutral: Value without colour.
        order: Strategies, first on top.
    """
    metric_rows = [row for row in rows if row["metric"] == metric]
    concepts = sorted({row["concept"] for row in metric_rows})
    values = [row["value"] for row in metric_rows if row["value"] is not None]
    paint = _painter(values, neutral)
    by_cell: dict[tuple[str, str], list[Row]] = {}
    for row in metric_rows:
        by_cell.setdefault((row["strategy"], row["concept"]), []).append(row)
    strategies = [name for name in order if any((name, concept) in by_cell for concept in concepts)]
    lines = [(name, [_cell(by_cell.get((name, c), []), paint) for c in concepts]) for name in strategies]
    return HeatMap(metric, metric_info(metric).summary, concepts, lines)


def _cell(rows: list[Row], paint: Callable[[float], str]) -> HeatCell:
    if not rows:
        return HeatCell("", "not measured")
    values = [row["value"] for row in rows if row["value"] is not None]
    title = "; ".join(_describe(row) for row in rows)
    if not values:
        return HeatCell(rows[0]["status"].replace("_", " "), title)
    return HeatCell(f"{fmean(values):z.2f}", title, paint(fmean(values)))


def _describe(row: Row) -> str:
    layer = f"layer {row['layer']}: " if row["layer"] is not None else ""
    if row["value"] is None:
        return f"{layer}{row['status']} ({row['reason']})"
    interval = f" [{row['ci_low']:.3f}, {row['ci_high']:.3f}]" if row["ci_low"] is not None else ""
    return f"{layer}{row['value']:z.3f}{interval}"


def _painter(values: Sequence[float], neutral: float) -> Callable[[float], str]:
    """Return a function from value to colour: blue above neutral, orange below, readable for the colour-blind."""
    reach = max((abs(value - neutral) for value in values), default=1.0) or 1.0

    def paint(value: float) -> str:
        share = min(1.0, abs(value - neutral) / reach)
        hue = "37, 99, 235" if value >= neutral else "217, 119, 6"
        return f"rgba({hue}, {0.08 + 0.6 * share:.2f})"

    return paint
