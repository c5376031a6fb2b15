"""Pictures of a run: separation against gain, one response chart per concept, critical-difference diagrams."""

from collections.abc import Mapping, Sequence

from poolbench.contracts import Row
from poolbench_driver.contract.page import Block, Cell, Group, Picture, Prose
from poolbench_driver.contract.vega import ACCENT, GREY, INK, Spec
from poolbench_driver.pages import drawing as draw
from poolbench_driver.pages.boards.ranking import RankBoard
from poolbench_driver.pages.boards.ranks import tells_apart
from poolbench_driver.suites.poolbench.report.answer import GAIN, SEPARATION
from poolbench_driver.suites.poolbench.report.board import FAMILY_LOOKS, FAMILY_SIGNS, StrategyBoard

#: Curves per concept: the strategies whose score rises most.
NUM_CURVES = 5
_NULL = "null directions, 5-95 %"


def trade_off(board: StrategyBoard) -> Picture | None:
    """Return a chart of D1 AUROC against steering gain, with one point per strategy.

    If fewer than two strategies have both figures, return None.
    """
    rows = {
        entrant.strategy: {
            "series": entrant.family if entrant.family in FAMILY_LOOKS else "", "text": entrant.strategy,
            "x": x.value, "left": x.ci_low, "right": x.ci_high, "y": y.value, "low": y.ci_low, "high": y.ci_high,
            "says": f"{entrant.strategy}: AUROC {x.text}, gain {y.text}",
        }
        for entrant in board.entrants
        if (x := entrant.figures.get(SEPARATION)) and (y := entrant.figures.get(GAIN))
    }  # fmt: skip
    if len(rows) < 2:
        return None
    families = {entrant.family for entrant in board.entrants}
    legend = [
        Cell(name or "not registered here", sign=sign, colour=colour)
        for name, (sign, colour) in FAMILY_SIGNS.items()
        if name in families
    ]
    return draw.picture(
        "Separability against steering gain, one point per strategy",
        draw.chart(
            [*_reach(rows.get(board.best.get(SEPARATION, ""))), draw.points(rows.values()), *_named(rows, board)],
            draw.number_axis("D1: how well a probe separates (AUROC)"),
            draw.number_axis("D2: gain of the concept in steered text"),
            270,
            FAMILY_LOOKS,
            has_legend=False,
        ),
        captions=[*legend, "lines: 95 % intervals over concepts; shaded: that of the best D1"],
    )


def _reach(best: draw.Datum | None) -> list[Spec]:
    """Return a band over the interval of the best D1. Without an interval, return an empty list."""
    return [] if best is None or best["left"] is None else [draw.span(best["left"], best["right"], ACCENT)]


def _named(rows: Mapping[str, draw.Datum], board: StrategyBoard) -> list[Spec]:
    """Return labels with the names of the best strategy of each question, on the side with more room."""
    places = [row["x"] for row in rows.values()]
    best = [rows[name] for name in dict.fromkeys(board.best.values()) if name in rows]
    return [
        draw.texts([row], "left" if 2 * row["x"] < min(places) + max(places) else "right", dy=-8, fontWeight="bold")
        for row in best
    ]


def response_charts(curves: Sequence[Row]) -> list[Block]:
    """Return a chart for each concept that has response curves, or a sentence with the reason without curves."""
    concepts = sorted({row["concept"] for row in curves})
    charts = [_response([row for row in curves if row["concept"] == name], name) for name in concepts]
    return [Group(charts) if charts else Prose("No curves: no scorer passed its gate.")]


def _response(rows: Sequence[Row], concept: str) -> Picture:
    gains: dict[str, float] = {}
    for row in rows:
        if row["fluent"]:
            gains[row["strategy"]] = max(gains.get(row["strategy"], float("-inf")), row["gain"])
    risen = sorted(gains, key=lambda name: -gains[name])[:NUM_CURVES]
    ordered = sorted(rows, key=lambda row: row["strength"])
    curves = [
        {
            "x": row["strength"], "y": row["score"], "low": row["ci_low"], "high": row["ci_high"],
            "series": row["strategy"], "says": f"{row['strategy']}: {row['score']:.2f} at strength {row['strength']:g}",
        }
        for row in ordered
        if row["strategy"] in risen
    ]  # fmt: skip
    null = {
        row["strength"]: {"x": row["strength"], "low": row["null_low"], "high": row["null_high"], "series": _NULL}
        for row in ordered
        if row["null_low"] is not None
    }
    unit = "coefficient" if any(row.get("alpha_unit") == "absolute" for row in rows) else "median residual norms"
    looks = {**({_NULL: (GREY, "square")} if null else {}), **draw.looks_of(risen)}
    layers = [
        draw.bands(null.values(), 0.35),
        draw.bands(curves),
        draw.trends(curves),
        draw.points(curves, 20, has_intervals=False),
    ]
    axes = draw.number_axis(f"strength ({unit})"), draw.number_axis("P(concept)", (0, 1))
    return draw.picture(
        f"P(concept) of {concept} by strength", draw.chart(layers, *axes, 220, looks), captions=[concept]
    )


_LINE = 22.0  # pixels a strategy takes


def rank_diagrams(boards: Mapping[str, RankBoard]) -> dict[str, Picture]:
    """Return a critical-difference diagram for each metric whose board was tested and has enough concepts.

    Reference: Demsar (2006), "Statistical comparisons of classifiers over multiple data sets", figure 1.
    """
    drawable = {m: b for m, b in boards.items() if b.summary["critical_difference"] is not None and tells_apart(b)}
    return {metric: rank_diagram(board) for metric, board in drawable.items()}


def rank_diagram(board: RankBoard) -> Picture:
    """Draw the mean ranks of a board, best on the left. Bars join strategies within the critical difference."""
    ranked = [(n, m.value) for n, m in zip(board.entrants, board.measures, strict=True) if m.value is not None]
    ranks, last = dict(ranked), len(board.entrants)
    groups = [[ranks[name] for name in group] for group in board.summary["tie_groups"] if len(group) > 1]
    ties = [_across(min(group) - 0.06, max(group) + 0.06, -0.4 - 0.5 * place) for place, group in enumerate(groups)]
    half, depth, reach = (len(ranked) + 1) // 2, 0.5 * len(groups) + 0.8, 0.22 * (last - 1) + 0.6
    better = [(name, rank, -depth - place) for place, (name, rank) in enumerate(ranked[:half])]
    worse = [(name, rank, -depth - place) for place, (name, rank) in enumerate(reversed(ranked[half:]))]
    ends = [(0.4, row) for row in better] + [(last + 0.6, row) for row in worse]
    stems: list[draw.Datum] = [{"x": rank, "x2": rank, "y": 0, "y2": y} for _, (_, rank, y) in ends]
    stems += [_across(rank, end, y) for end, (_, rank, y) in ends]
    layers = [
        *_scale(last, board.summary["critical_difference"]),
        draw.segments(ties, INK, 3.2),
        draw.segments(stems),
        draw.texts(({"x": 0.4, "y": y, "text": f"{name} {rank:.2f}"} for name, rank, y in better), "right", aria=True),
        draw.texts(({"x": last + 0.6, "y": y, "text": f"{name} {rank:.2f}"} for name, rank, y in worse), aria=True),
    ]
    across = draw.number_axis("", (0.4 - reach, last + 0.6 + reach), has_axis=False)
    up = draw.number_axis("", (-depth - half, 2.2), has_axis=False)
    return draw.picture(
        f"Mean ranks by {board.metric}", draw.chart(layers, across, up, _LINE * (depth + half + 2.2), width=640),
        captions=[board.metric],
    )  # fmt: skip


def _across(start: float, end: float, y: float) -> draw.Datum:
    return {"x": start, "x2": end, "y": y, "y2": y}


def _scale(last: int, difference: float) -> list[Spec]:
    """Return the axis of ranks, and the critical difference as a ruler above it, cut where it exceeds the axis."""
    ticks = [{"x": rank, "x2": rank, "y": 0, "y2": 0.18, "text": str(rank)} for rank in range(1, last + 1)]
    length = min(difference, last - 1)
    note = f"critical difference {difference:.2f}{' (more than all ranks)' if difference > length else ''}"
    return [
        draw.segments([_across(1, last, 0), *ticks], INK, 1),
        draw.texts([{**tick, "y": 0.55} for tick in ticks], "center", 0),
        draw.segments([_across(1, 1 + length, 1.25)], ACCENT, 2),
        draw.texts([{"x": 1, "y": 1.65, "text": note}], dx=0, color=ACCENT),
    ]
