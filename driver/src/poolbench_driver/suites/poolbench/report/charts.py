"""Inline SVG: separation against gain, one response chart per concept, critical-difference diagrams of the boards.

Colours are variables of the page, so that a chart is as light or dark as what stands around it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from poolbench.contracts import Row
from poolbench_driver.contract.page import Block, Cell, Group, Picture, Prose
from poolbench_driver.pages.boards.ranking import RankBoard
from poolbench_driver.pages.boards.ranks import tells_apart
from poolbench_driver.pages.drawing import ACCENT, COLOURS, GREY, INK, MUTED, gridded, svg
from poolbench_driver.suites.poolbench.report.answer import GAIN, SEPARATION
from poolbench_driver.suites.poolbench.report.board import FAMILY_MARKS, FAMILY_SIGNS, Board, Entrant

#: Curves per concept: the strategies whose score rises most.
NUM_CURVES = 5


def trade_off(board: Board) -> Picture | None:
    """Return the picture of both questions, one point per strategy; None where fewer than two have both figures."""
    points = [entrant for entrant in board.entrants if {SEPARATION, GAIN} <= set(entrant.figures)]
    if len(points) < 2:
        return None

    def draw(axes: Any) -> None:
        for entrant in points:
            x, y = entrant.figures[SEPARATION], entrant.figures[GAIN]
            marker, _, colour = FAMILY_MARKS.get(entrant.family, FAMILY_MARKS[""])
            line: dict[str, Any] = {"color": colour, "linewidth": 1.2, "alpha": 0.3}
            axes.plot([x.ci_low, x.ci_high], [y.value] * 2, **line)
            axes.plot([x.value] * 2, [y.ci_low, y.ci_high], **line)
            axes.plot(x.value, y.value, marker, color=colour, markersize=7, markeredgewidth=0)
        _mark_best(axes, points, board)
        gridded(axes, "D1: how well a probe separates (AUROC)", "D2: gain of the concept in steered text")

    drawn = svg((6.6, 4.1), "poolbench trade-off", "Separability against steering gain, one point per strategy", draw)
    families = {entrant.family for entrant in board.entrants}
    legend = [
        Cell(name or "not registered here", sign=sign, colour=colour)
        for name, (sign, colour) in FAMILY_SIGNS.items()
        if name in families
    ]
    return Picture(drawn, [*legend, Cell("lines: 95 % intervals, mean over concepts; shaded: that of the best D1")])


def _mark_best(axes: Any, points: Sequence[Entrant], board: Board) -> None:
    """Name the best strategy of each question, and show how far the best D1 reaches."""
    by_name = {entrant.strategy: entrant for entrant in points}
    for metric in (SEPARATION, GAIN):
        best = by_name.get(board.best.get(metric, ""))
        if best is None:
            continue
        x, y = best.figures[SEPARATION], best.figures[GAIN]
        if metric == SEPARATION and x.ci_low is not None:
            axes.axvspan(x.ci_low, x.ci_high, color=ACCENT, alpha=0.06, linewidth=0)
        right = (x.value or 0.0) < sum(axes.get_xlim()) / 2
        axes.annotate(
            best.strategy, (x.value, y.value), xytext=(8 if right else -8, 7), textcoords="offset points",
            ha="left" if right else "right", fontweight="bold",
        )  # fmt: skip


def response_charts(curves: Sequence[Row]) -> list[Block]:
    """Return a chart for each concept that has curves, or why there is none."""
    concepts = sorted({row["concept"] for row in curves})
    charts = [Picture(_chart([row for row in curves if row["concept"] == name]), [Cell(name)]) for name in concepts]
    return [Group(charts) if charts else Prose("No curves: no scorer passed its gate.")]


def _chart(rows: list[Row]) -> str:
    def draw(axes: Any) -> None:
        band = {row["strength"]: (row["null_low"], row["null_high"]) for row in rows if row["null_low"] is not None}
        if band:
            x = sorted(band)
            low, high = [band[s][0] for s in x], [band[s][1] for s in x]
            axes.fill_between(x, low, high, color=GREY, alpha=0.35, lw=0, label="null directions, 5-95 %")
        gains: dict[str, float] = {}
        for row in rows:
            if row["fluent"]:
                gains[row["strategy"]] = max(gains.get(row["strategy"], float("-inf")), row["gain"])
        for name, colour in zip(sorted(gains, key=lambda name: -gains[name])[:NUM_CURVES], COLOURS, strict=False):
            _draw_curve(axes, [row for row in rows if row["strategy"] == name], name, colour)
        absolute = any(row.get("alpha_unit") == "absolute" for row in rows)
        axes.set_xlabel("strength (coefficient)" if absolute else "strength (median residual norms)")
        axes.set_ylabel("P(concept)")
        axes.set_ylim(0, 1)
        axes.legend(fontsize=7, frameon=False)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)

    return svg((5.2, 3.2), "poolbench", f"P(concept) of {rows[0]['concept']} by strength", draw)


def _draw_curve(axes: Any, rows: list[Row], name: str, colour: str) -> None:
    points = sorted(rows, key=lambda row: row["strength"])
    x = [row["strength"] for row in points]
    axes.fill_between(x, [r["ci_low"] for r in points], [r["ci_high"] for r in points], color=colour, alpha=0.1, lw=0)
    axes.plot(x, [row["score"] for row in points], color=colour, marker="o", markersize=3, linewidth=1.3, label=name)


_LINE = 0.34  # inches a strategy or bar takes


def rank_diagrams(boards: Mapping[str, RankBoard]) -> dict[str, str]:
    """Return one diagram for each metric whose board has a critical difference and enough concepts for it.

    Reference: Demsar (2006), "Statistical comparisons of classifiers over multiple data sets", figure 1.
    """
    drawable = {m: b for m, b in boards.items() if b.summary["critical_difference"] is not None and tells_apart(b)}
    return {metric: rank_diagram(board) for metric, board in drawable.items()}


def rank_diagram(board: RankBoard) -> str:
    """Return mean ranks of a board, best on the left; bars join strategies within the critical difference."""
    ranked = [(n, m.value) for n, m in zip(board.entrants, board.measures, strict=True) if m.value is not None]
    bars = [group for group in board.summary["tie_groups"] if len(group) > 1]
    rows = (len(ranked) + 1) // 2
    height = _LINE * (len(bars) * 0.5 + rows + 3)

    def draw(axes: Any) -> None:
        _draw_scale(axes, len(board.entrants), board.summary["critical_difference"])
        ranks = dict(ranked)
        for number, group in enumerate(bars):
            ends = [ranks[name] for name in group]
            depth = -0.4 - 0.5 * number
            axes.plot([min(ends) - 0.06, max(ends) + 0.06], [depth, depth], color=INK, linewidth=3.2)
        _draw_names(axes, ranked, len(board.entrants), depth=len(bars) * 0.5 + 0.8)
        axes.set_axis_off()

    return svg((9.5, height), f"poolbench {board.metric}", f"Mean ranks by {board.metric}", draw)


def _draw_scale(axes: Any, num_strategies: int, difference: float) -> None:
    """Draw the axis of ranks, and the critical difference as a ruler above it (cut where it exceeds the axis)."""
    axes.plot([1, num_strategies], [0, 0], color=INK, linewidth=1)
    for rank in range(1, num_strategies + 1):
        axes.plot([rank, rank], [0, 0.18], color=INK, linewidth=1)
        axes.text(rank, 0.3, str(rank), ha="center", va="bottom", fontsize=8)
    length = min(difference, num_strategies - 1)
    axes.plot([1, 1 + length], [1.25, 1.25], color=ACCENT, linewidth=2)
    note = " (more than all ranks)" if difference > length else ""
    axes.text(1, 1.38, f"critical difference {difference:.2f}{note}", ha="left", va="bottom", color=ACCENT, fontsize=8)


def _draw_names(axes: Any, ranked: list[tuple[str, float]], num_strategies: int, depth: float) -> None:
    """Draw names left of the axis for the better half, right of it for the others, each with a line to its rank."""
    left, right = 0.4, num_strategies + 0.6
    half = (len(ranked) + 1) // 2
    for place, (name, rank) in enumerate(ranked):
        better = place < half
        y = -depth - (place if better else len(ranked) - 1 - place)
        edge = left if better else right
        axes.plot([rank, rank, edge], [0, y, y], color=MUTED, linewidth=0.8)
        gap, side = (-0.1, "right") if better else (0.1, "left")
        axes.text(edge + gap, y, f"{name} {rank:.2f}", ha=side, va="center", fontsize=8)
    reach = 0.22 * (num_strategies - 1) + 0.6
    axes.set_xlim(left - reach, right + reach)
    axes.set_ylim(-depth - half, 2.2)
