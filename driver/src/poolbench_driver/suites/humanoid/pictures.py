"""Pictures of a run: words before and after, the change by epochs and sentences, one word in place of a list."""

from collections.abc import Sequence
from math import atan2, degrees
from statistics import fmean
from typing import Any

from poolbench.contracts import Row
from poolbench_driver.contract.page import Picture
from poolbench_driver.contract.vega import ACCENT, COLOURS, GREY, Spec
from poolbench_driver.pages import drawing as draw
from poolbench_driver.suites.humanoid.cosines import LISTS
from poolbench_driver.suites.humanoid.metrics import PRIMARY
from poolbench_driver.suites.humanoid.view import NAMED, Tune

#: Looks of a word's place before, and of the liked and disliked words.
_LOOKS = {"domain": (GREY, "circle"), "positive": (COLOURS[2], "cross"), "negative": (COLOURS[1], draw.MINUS)}
_SIGNS = dict(zip(LISTS, ("+", "−"), strict=True))
_HEIGHT = 290.0
Ends = tuple[float, float]


def arrows(tune: Tune) -> Picture:
    """Return the words before and after a fine-tune in the plane of the first two principal components."""
    placed = [row for row in tune.words if row["x_before"] is not None]
    domain = [row for row in placed if row["group"] == "domain"]
    ends = [[row[f"{axis}_{time}"] for row in placed for time in ("before", "after")] for axis in "xy"]
    across, up = (_widened(places) for places in ends)
    label_words = {row["word"] for row in domain[:NAMED]} | set(tune.favourites)
    strong, weak = ([row for row in domain if (row["word"] in label_words) is is_named] for is_named in (True, False))
    share = tune.value("shift.plane_share")
    return draw.picture(
        f"Words before and after {tune.name}",
        draw.chart(
            [
                *_arrows(weak, GREY, 0.8, across, up),
                draw.points([_place(row, "before") for row in domain], 8),
                draw.points([_place(row, "after") for row in placed if row["group"] != "domain"]),
                *_arrows(strong, ACCENT, 1.6, across, up),
                draw.texts(({**_place(row, "after"), "text": row["word"]} for row in strong), dy=-6, fontWeight="bold"),
            ],
            draw.number_axis("first principal component", across),
            draw.number_axis("second principal component", up),
            _HEIGHT,
            _LOOKS,
            has_legend=False,
        ),
        captions=[
            f"{tune.name}: each word before (dot) and after (arrow)", "+ liked, − disliked words, after",
            *([] if share is None else [f"the plane shows {100 * share:.0f} % of the variance"]),
        ],
    )  # fmt: skip


def _widened(places: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis that holds some places with room at its ends."""
    margin = 0.05 * (max(places, default=1.0) - min(places, default=0.0) or 1.0)
    return min(places, default=0.0) - margin, max(places, default=1.0) + margin


def _place(row: Row, time: str) -> draw.Datum:
    """Return where a word is before or after."""
    moved = " to ".join(f"({row[f'x_{of}']:.2f}, {row[f'y_{of}']:.2f})" for of in ("before", "after"))
    place = {"x": row[f"x_{time}"], "y": row[f"y_{time}"], "series": row["group"]}
    return {**place, "text": row["word"], "says": f"{row['word']} ({row['group']}): {moved}"}


def _arrows(rows: Sequence[Row], colour: str, width: float, x_ends: Ends, y_ends: Ends) -> list[Spec]:
    """Return arrows from before to after; heads turn by the slopes on the screen."""
    wide, high = draw.WIDTH / (x_ends[1] - x_ends[0]), _HEIGHT / (y_ends[1] - y_ends[0])
    shafts = [{**_place(row, "before"), "x2": row["x_after"], "y2": row["y_after"]} for row in rows]
    heads = [
        {**_place(row, "after"), "turn": degrees(atan2(wide * (end["x2"] - end["x"]), high * (end["y2"] - end["y"])))}
        for row, end in zip(rows, shafts, strict=True)
    ]
    turned: Any = {"angle": {"field": "turn", "type": "quantitative", "scale": None}, "shape": {"value": "triangle"}}
    return [draw.segments(shafts, colour, width), draw.points(heads, 25 * width, color={"value": colour}, **turned)]


def by_amount(tunes: Sequence[Tune], axes: Sequence[str], neutral: float | None) -> Picture:
    """Plot the change of variance by the first axis, with one line per value of the second axis, if any."""
    across, *others = axes
    rows, groups = [], dict[str, dict[float, list[float]]]()
    for tune in sorted(tunes, key=lambda tune: [tune.amounts[axis] for axis in (*others, across)]):
        row, place = tune.figures[PRIMARY], tune.amounts[across]
        group = f"{tune.amounts[others[0]]:g} {others[0]}" if others else "mean"
        groups.setdefault(group, {}).setdefault(place, []).append(row["value"])
        says = f"{tune.name}: {tune.figure(PRIMARY).text} at {place:g} {across}"
        rows.append(
            {"x": place, "y": row["value"], "low": row["ci_low"], "high": row["ci_high"], "series": group, "says": says}
        )
    means = [
        {"x": place, "y": fmean(values), "series": group}
        for group, by_place in groups.items()
        for place, values in by_place.items()
    ]
    captions = ["a point is a fine-tune, a line goes through means"]
    if neutral is not None:
        captions.append("dashed: mean of the neutral fine-tunes")
    layers = [*([] if neutral is None else [draw.level("y", neutral)]), draw.trends(means), draw.points(rows, 30)]
    scales = draw.number_axis(across), draw.number_axis(f"change of variance ({PRIMARY})")
    chart = draw.chart(layers, *scales, 240, draw.looks_of(groups), has_legend=bool(others))
    return draw.picture(f"Change of variance by {' and '.join([across, *others])}", chart, captions=captions)


def single_words(rows: Sequence[Row]) -> Picture:
    """Plot the change of variance if one word replaces its list, as horizontal bars."""
    bars = [
        {"x": row["variance"], "y": f"{_SIGNS[row['list']]} {row['word']}", "series": row["list"],
         "says": f"{row['word']}, in place of all {row['list']} words: {row['variance']:+.4f}"}
        for row in rows
    ]  # fmt: skip
    return draw.picture(
        "Change of variance by the word that is left",
        draw.chart(
            [draw.horizontal_bars(bars), draw.level("x", 0)], draw.number_axis(f"change of variance ({PRIMARY})"),
            draw.name_axis([bar["y"] for bar in bars], grid=False), 50 + 14 * len(bars), _LOOKS, has_legend=False,
        ),
        captions=["+ in place of all liked words, − of all disliked ones"],
    )  # fmt: skip
