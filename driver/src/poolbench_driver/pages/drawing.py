"""Parts of pictures: points with intervals, lines, bands and texts, and intervals of tables on a common scale."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from math import ceil, isfinite
from typing import Any

from poolbench_driver.contract.page import Cell, Picture
from poolbench_driver.contract.vega import COLOURS, INK, MUTED, THEME, VERSION, Spec

#: Signs of series, for who does not see the colours: shapes of Vega, and paths in a square from -1 to 1.
CROSS = "M-.7,-1L0,-.3L.7,-1L1,-.7L.3,0L1,.7L.7,1L0,.3L-.7,1L-1,.7L-.3,0L-1,-.7Z"
MINUS = "M-1,-.3H1V.3H-1Z"
SHAPES = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross")
#: Pixels of a picture across, of which the text of a page has some 600.
WIDTH = 440

#: A row of a layer's data: `x`, `y`, `series`, and what the layer names besides.
Datum = Mapping[str, Any]
#: Colour and sign by series. Nothing is distinguished by colour alone.
Looks = Mapping[str, tuple[str, str]]

#: What a mark says where it is pointed at, and to a screen reader.
_SAYS = {channel: {"field": "says", "type": "nominal"} for channel in ("description", "tooltip")}
#: Characters that XML cannot hold: they would end the process that draws.
_UNFIT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
#: Those of two UTF-16 units too, of which Vega may cut one where a name is too long for its place.
_UNFIT_IF_CUT = re.compile(rf"{_UNFIT.pattern}|[\U00010000-\U0010ffff]")
#: Characters of a text that is never cut, and of the longest one.
_WHOLE, _LONGEST = 10, 300
#: Pixels of a line of a legend, and characters of names of which three stand in a line.
_LEGEND_LINE, _SHORT = 17, 18
#: Pixels of a drawn interval, and of the margin at its ends.
_LENGTH, _MARGIN = 110, 6


def bars(cells: Sequence[Cell]) -> list[tuple[float, float, float] | None]:
    """Return the low end, value and high end of each cell's bar on a common scale, or None without a value."""
    ends = [end for cell in cells for end in (cell.value, cell.ci_low, cell.ci_high) if end is not None]
    lowest, span = min(ends, default=0.0), (max(ends, default=0.0) - min(ends, default=0.0)) or 1.0

    def at(value: float) -> float:
        return round(_MARGIN + (_LENGTH - 2 * _MARGIN) * (value - lowest) / span, 1)

    def drawn(cell: Cell) -> tuple[float, float, float] | None:
        if cell.value is None:
            return None
        low, high = (cell.value if end is None else end for end in (cell.ci_low, cell.ci_high))
        return at(low), at(cell.value), at(high)

    return [drawn(cell) for cell in cells]


def looks_of(series: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the colour and shape of each series. After the last pair of colour and shape, the first is used again."""
    return dict(zip(series, cycle(zip(COLOURS, SHAPES, strict=True)), strict=False))


def number_axis(title: str, domain: Sequence[float] = (), scale: str = "linear", *, has_axis: bool = True) -> Spec:
    """Return an axis of numbers. A logarithmic axis has ticks at 1, 2 and 5 times powers of 10."""
    ends = {"domain": list(domain), "nice": False} if domain else {"zero": False, "padding": 10, "nice": False}
    axis: dict[str, Any] = {"tickCount": 6, "labelOverlap": True}
    if scale == "log":
        axis |= {"values": [digit * 10.0**power for power in range(-3, 10) for digit in (1, 2, 5)], "format": "~s"}
    scaled = {"type": "quantitative", "title": title, "scale": {"type": scale, **ends}}
    return {**scaled, "axis": axis if has_axis else None}


def name_axis(order: Iterable[str], title: str | None = None, **axis: Any) -> Spec:
    """Return an axis of names in an order."""
    scale = {"type": "band", "domain": list(order), "paddingInner": 0.2}
    return {"type": "nominal", "title": title, "scale": scale, "axis": {"grid": True, "labelAngle": 0, **axis}}


def points(data: Iterable[Datum], area: float = 45, *, has_intervals: bool = True, **channels: Any) -> Spec:
    """Return points, with their intervals if they have some.

    Args:
        data: Rows with `x`, `y`, `series`, and `says`, their figures as text; with `low` and `high` for an interval
            upwards, and with `left` and `right` for one across.
        area: Area of a point, in pixels.
        has_intervals: Whether intervals are drawn.
        channels: Further channels of the points.
    """
    rows = list(data)
    ranges = [
        {
            "transform": [{"filter": {"field": start, "valid": True}}],
            "mark": {"type": "rule", "strokeWidth": 1.2, "opacity": 0.35, "aria": False},
            "encoding": {axis: {"field": start}, f"{axis}2": {"field": end}, "shape": None},
        }
        for axis, start, end in (("x", "left", "right"), ("y", "low", "high"))
        if has_intervals and any(row.get(start) is not None for row in rows)
    ]
    mark = {"type": "point", "filled": True, "opacity": 1, "size": area}
    return {"data": {"values": rows}, "layer": [*ranges, {"mark": mark, "encoding": {**_SAYS, **channels}}]}


def trends(data: Iterable[Datum], **mark: Any) -> Spec:
    """Return a line through the rows of each series."""
    return _layer(data, {"type": "line", "strokeWidth": 1.4, **mark})


def horizontal_bars(data: Iterable[Datum]) -> Spec:
    """Return a bar from 0 to `x` for each name of the axis up, with its figures as text (`says`)."""
    return _layer(data, {"type": "bar", "height": {"band": 0.7}, "aria": True}, **_SAYS)


def bands(data: Iterable[Datum], opacity: float = 0.1) -> Spec:
    """Return an area from `low` to `high` for each series."""
    return _layer(data, {"type": "area", "opacity": opacity}, y={"field": "low"}, y2={"field": "high"})


def span(start: float, end: float, colour: str) -> Spec:
    """Return the shaded range between two places of the axis across."""
    mark = {"type": "rect", "opacity": 0.06}
    return _layer([{"x": start, "x2": end}], mark, x2={"field": "x2"}, y=None, color={"value": colour})


def segments(data: Iterable[Datum], colour: str = MUTED, width: float = 0.8, **mark: Any) -> Spec:
    """Return straight lines from (`x`, `y`) to (`x2`, `y2`)."""
    mark = {"type": "rule", "strokeWidth": width, **mark}
    return _layer(data, mark, x2={"field": "x2"}, y2={"field": "y2"}, color={"value": colour})


def level(axis: str, place: float, dash: Sequence[float] = (4, 3)) -> Spec:
    """Return a dashed line at a place of an axis, through the whole picture."""
    mark = {"type": "rule", "strokeDash": list(dash), "strokeWidth": 0.8}
    whole: dict[str, None] = {"y": None, "yOffset": None} if axis == "x" else {"x": None}
    return _layer([{axis: place}], mark, color={"value": MUTED}, **whole)


def texts(data: Iterable[Datum], align: str = "left", dx: float = 7, **mark: Any) -> Spec:
    """Return texts (`text`) at their places. With `aria`, screen readers see each text as a mark of its own."""
    mark = {"type": "text", "align": align, "dx": -dx if align == "right" else dx, "baseline": "middle"} | mark
    names = ("text", "description") if mark.get("aria") else ("text",)
    channels = {name: {"field": "text", "type": "nominal"} for name in names}
    return _layer(data, mark, color={"value": mark.get("color", INK)}, **channels)


def _layer(data: Iterable[Datum], mark: Spec, **encoding: Any) -> Spec:
    return {"data": {"values": list(data)}, "mark": {"aria": False, **mark}, "encoding": {"shape": None, **encoding}}


def chart(
    layers: Iterable[Spec],
    x: Spec,
    y: Spec,
    height: float,
    looks: Looks | None = None,
    *,
    width: float | None = None,
    beside: bool = False,
    has_legend: bool = True,
) -> Spec:
    """Return layers on two axes.

    Args:
        layers: Layers to draw, the lowest first.
        x: Axis across.
        y: Axis up.
        height: Height in pixels, without the legend.
        looks: Colour and sign by series. Without any, nothing belongs to a series.
        width: Width without labels, in pixels; by default the chart takes the whole width of a picture.
        beside: Whether series stand below each other at each name of the axis up.
        has_legend: Whether a legend names the series.
    """
    encoding: dict[str, Any] = {"x": {"field": "x", **x}, "y": {"field": "y", **y}}
    looks = looks or {}
    series = {"field": "series", "type": "nominal"}
    columns = 2 if any(len(name) > _SHORT for name in looks) else 3
    if beside:
        encoding["yOffset"] = {**series, "scale": {"domain": list(looks)}}
    for place, channel in enumerate(("color", "shape") if looks else ()):
        scale = {"domain": list(looks), "range": [look[place] for look in looks.values()]}
        encoding[channel] = {**series, "scale": scale, "legend": {"columns": columns} if has_legend else None}
    if width is None and has_legend:
        height += _LEGEND_LINE * ceil(len(looks) / columns)
    return {"width": width or WIDTH, "height": height, "encoding": encoding, "layer": list(layers)}


def picture(title: str, *charts: Spec, captions: Iterable[str | Cell] = ()) -> Picture:
    """Return a chart, or several beside each other, as a picture with captions."""
    fit = {"autosize": {"type": "fit", "contains": "padding"}}
    whole = {**fit, **charts[0]} if len(charts) == 1 else {"hconcat": charts}
    spec = {
        "$schema": f"https://vega.github.io/schema/vega-lite/v{VERSION.split('.')[0]}.json",
        "description": _plain(title), "background": None, "config": THEME, **_plain(whole),
    }  # fmt: skip
    return Picture(spec, [Cell(caption) if isinstance(caption, str) else caption for caption in captions])


def _plain(part: Any) -> Any:
    """Return a part of a specification with six-digit numbers, null for infinity and NaN, and texts fit to draw."""
    match part:
        case float():
            return float(f"{part:.6g}") if isfinite(part) else None
        case str():
            return (_UNFIT if len(part) <= _WHOLE else _UNFIT_IF_CUT).sub("�", part[:_LONGEST])
        case Mapping():
            return {_plain(name): _plain(value) for name, value in part.items()}
        case list() | tuple():
            return [_plain(value) for value in part]
    return part
