"""Inline SVG: one response chart per concept, and critical-difference diagrams of the rank boards."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from typing import Any

from markupsafe import Markup

from poolbench.suites import RankBoard
from poolbench_driver.report.views import View

Row = dict[str, Any]

#: Curves per concept: the strategies whose score rises most.
NUM_CURVES = 5
_COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626")


def response_charts(view: View) -> list[tuple[str, Markup]]:
    """Return (concept, SVG) of each concept that has curves."""
    concepts = sorted({row["concept"] for row in view.curves})
    return [(name, _chart([row for row in view.curves if row["concept"] == name])) for name in concepts]


def _chart(rows: list[Row]) -> Markup:
    def draw(axes: Any) -> None:
        _draw_null_band(axes, rows)
        for name, colour in zip(_steepest(rows), _COLOURS, strict=False):
            _draw_curve(axes, [row for row in rows if row["strategy"] == name], name, colour)
        absolute = any(row.get("alpha_unit") == "absolute" for row in rows)
        axes.set_xlabel("strength (coefficient)" if absolute else "strength (median residual norms)")
        axes.set_ylabel("P(concept)")
        axes.set_ylim(0, 1)
        axes.legend(fontsize=7, frameon=False)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)

    return _svg((5.2, 3.2), "poolbench", draw)


def _svg(size: tuple[float, float], salt: str, draw: Callable[[Any], None]) -> Markup:
    """Return a figure as SVG; the salt makes its ids reproducible."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.fonttype": "none", "font.size": 9, "svg.hashsalt": salt}):
        figure, axes = plt.subplots(figsize=size, layout="constrained")
        draw(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    return Markup(re.sub(r"^.*?(?=<svg)", "", buffer.getvalue(), count=1, flags=re.DOTALL))


def _steepest(rows: list[Row]) -> list[str]:
    gains: dict[str, float] = {}
    for row in rows:
        if row["fluent"]:
            gains[row["strategy"]] = max(gains.get(row["strategy"], float("-inf")), row["gain"])
    return sorted(gains, key=lambda name: -gains[name])[:NUM_CURVES]


def _draw_curve(axes: Any, rows: list[Row], name: str, colour: str) -> None:
    points = sorted(rows, key=lambda row: row["strength"])
    x = [row["strength"] for row in points]
    axes.fill_between(x, [r["ci_low"] for r in points], [r["ci_high"] for r in points], color=colour, alpha=0.1, lw=0)
    axes.plot(x, [row["score"] for row in points], color=colour, marker="o", markersize=3, linewidth=1.3, label=name)


def _draw_null_band(axes: Any, rows: list[Row]) -> None:
    band = {row["strength"]: (row["null_low"], row["null_high"]) for row in rows if row["null_low"] is not None}
    if band:
        x = sorted(band)
        low, high = [band[s][0] for s in x], [band[s][1] for s in x]
        axes.fill_between(x, low, high, color="#9ca3af", alpha=0.35, lw=0, label="null directions, 5-95 %")


_LINE = 0.34  # inches a strategy or bar takes


def rank_diagrams(boards: Mapping[str, RankBoard]) -> dict[str, Markup]:
    """Return one diagram for each metric whose board has a critical difference.

    Reference: Demsar (2006), "Statistical comparisons of classifiers over multiple data sets", figure 1.
    """
    drawable = {m: b for m, b in boards.items() if b.summary["critical_difference"] is not None}
    return {metric: rank_diagram(board) for metric, board in drawable.items()}


def rank_diagram(board: RankBoard) -> Markup:
    """Return mean ranks of a board, best on the left; bars join strategies within the critical difference."""
    ranked = [(n, m.value) for n, m in zip(board.strategies, board.measures, strict=True) if m.value is not None]
    bars = [group for group in board.summary["tie_groups"] if len(group) > 1]
    rows = (len(ranked) + 1) // 2
    height = _LINE * (len(bars) * 0.5 + rows + 3)

    def draw(axes: Any) -> None:
        _draw_scale(axes, len(board.strategies), board.summary["critical_difference"])
        _draw_bars(axes, bars, dict(ranked))
        _draw_names(axes, ranked, len(board.strategies), depth=len(bars) * 0.5 + 0.8)
        axes.set_axis_off()

    return _svg((9.5, height), f"poolbench {board.metric}", draw)


def _draw_scale(axes: Any, num_strategies: int, difference: float) -> None:
    """Draw the axis of ranks, and the critical difference as a ruler above it (cut where it exceeds the axis)."""
    axes.plot([1, num_strategies], [0, 0], color="black", linewidth=1)
    for rank in range(1, num_strategies + 1):
        axes.plot([rank, rank], [0, 0.18], color="black", linewidth=1)
        axes.text(rank, 0.3, str(rank), ha="center", va="bottom", fontsize=8)
    shown = min(difference, num_strategies - 1)
    axes.plot([1, 1 + shown], [1.25, 1.25], color="#2563eb", linewidth=2)
    note = " (more than all ranks)" if difference > shown else ""
    axes.text(
        1, 1.38, f"critical difference {difference:.2f}{note}", ha="left", va="bottom", color="#2563eb", fontsize=8
    )


def _draw_bars(axes: Any, bars: list[list[str]], ranks: Mapping[str, float]) -> None:
    for number, group in enumerate(bars):
        ends = [ranks[name] for name in group]
        depth = -0.4 - 0.5 * number
        axes.plot([min(ends) - 0.06, max(ends) + 0.06], [depth, depth], color="black", linewidth=3.2)


def _draw_names(axes: Any, ranked: list[tuple[str, float]], num_strategies: int, depth: float) -> None:
    """Draw names left of the axis for the better half, right of it for the others, each with a line to its rank."""
    left, right = 0.4, num_strategies + 0.6
    half = (len(ranked) + 1) // 2
    for place, (name, rank) in enumerate(ranked):
        better = place < half
        y = -depth - (place if better else len(ranked) - 1 - place)
        edge = left if better else right
        axes.plot([rank, rank, edge], [0, y, y], color="#6b7280", linewidth=0.8)
        gap, side = (-0.1, "right") if better else (0.1, "left")
        axes.text(edge + gap, y, f"{name} {rank:.2f}", ha=side, va="center", fontsize=8)
    reach = 0.22 * (num_strategies - 1) + 0.6
    axes.set_xlim(left - reach, right + reach)
    axes.set_ylim(-depth - half, 2.2)
