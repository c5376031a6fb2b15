"""Pictures as Vega-Lite specifications, and the SVG that is drawn from them."""

import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from pydantic import TypeAdapter

from poolbench_driver.contract.page import Picture
from poolbench_driver.contract.vega import COLOURS, VARIABLES, drawn
from poolbench_driver.pages.drawing import (
    bands,
    chart,
    horizontal_bars,
    level,
    looks_of,
    name_axis,
    number_axis,
    picture,
    points,
    span,
    texts,
    trends,
)

#: Names that could be taken for markup, for expressions, for fields, or for a colour of the page.
STRANGE = (
    "<b onload='x'>&amp;\"</b>", "datum['x'].y", "a[0].b\\\"c", "'+alert(1)+'", "{{x}}", "$\\frac{1}{2}$", COLOURS[0],
    "😀" * 60, "\ufdd0\uffff", "שלום \u202eעולם", "مرحبا", "名前 😀", "n" * 200, "", " ", "null", "\t\n", "]]>", "<!--",
    "\x00\x1b[31m\x7f",
)  # fmt: skip
#: What is replaced: characters that XML cannot hold, and in long names those of two units.
UNFIT = r"[\x00-\x1f\uffff\U00010000-\U0010ffff]"


def labels(svg: str) -> list[str]:
    """Return what the marks of a picture say."""
    return [
        str(element.get("aria-label"))
        for element in ElementTree.fromstring(svg).iter()
        if element.get("aria-roledescription") in ("point", "bar")
    ]


def row(name: str, place: float, **columns: float | None) -> dict[str, object]:
    return {"x": place, "y": place**2, "series": name, "says": f"{name}: {place}", "text": name, **columns}


def figure(names: tuple[str, ...]) -> Picture:
    rows = [row(name, 1.0 + place, low=0.5, high=place + 2.0) for place, name in enumerate(names)]
    layers = [bands(rows), trends(rows), points(rows), level("y", 1.0), span(1.0, 2.0, COLOURS[0]), texts(rows)]
    looks = dict.fromkeys(names, (COLOURS[0], "square"))
    return picture(names[0], chart(layers, number_axis(names[0]), number_axis("up"), 200, looks), captions=[names[0]])


def test_each_point_carries_its_figures_as_text() -> None:
    svg = figure(("one", "two")).svg
    assert labels(svg) == ["one: 1.0", "two: 2.0"]
    assert ElementTree.fromstring(svg).get("aria-label") == "one"


@pytest.mark.parametrize("name", STRANGE)
def test_no_name_breaks_a_picture(name: str) -> None:
    flat, named = figure((name, "other")), name_axis([name, "other"])
    bars = chart([horizontal_bars([{"x": 1.0, "y": name, "says": name}])], number_axis(""), named, 90)
    for svg in (flat.svg, picture(name, bars).svg):
        texts_of = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()}
        assert texts_of <= {"svg", "g", "path", "line", "text"}
        assert re.sub(f"{UNFIT}|�", "", labels(svg)[0]).startswith(re.sub(UNFIT, "", name)) or name.isspace()


def test_colours_are_variables_of_the_page_and_no_text_is_changed() -> None:
    named = figure((COLOURS[0], "other"))
    assert f'fill="var(--{VARIABLES[COLOURS[0]]})"' in named.svg and f'fill="{COLOURS[0]}"' not in named.svg
    assert f">{COLOURS[0]}</text>" in named.svg and "font-family" not in named.svg
    alone = drawn(named.spec)
    assert "var(--" not in alone and alone.startswith("<svg") and "system-ui" in alone


def test_numbers_that_are_none_are_left_out() -> None:
    rows = [row("a", 1.0, low=None, high=None), row("a", float("nan")), row("a", 3.0, low=1.0, high=float("inf"))]
    kept = picture("", chart([points(rows)], number_axis(""), number_axis(""), 100, looks_of(["a"])))
    json.dumps(kept.spec, allow_nan=False)
    assert labels(kept.svg) == ["a: 1.0", "a: 3.0"]


def test_intervals_and_their_points_share_an_axis() -> None:
    rows = [{**row("a", 1.0), "y": "kind", "left": 0.0, "right": 2.0}, {**row("b", 2.0), "y": "kind"}]
    spec = chart(
        [level("x", 1.5), points(rows)], number_axis("x"), name_axis(["kind"]), 100, looks_of("ab"), beside=True
    )
    svg = picture("", spec).svg
    places = [
        element.get("transform")
        for element in ElementTree.fromstring(svg).iter()
        if element.get("aria-roledescription") == "point"
    ]
    assert len({str(place).split(",")[1] for place in places}) == 2, "series stand below each other"


def test_the_same_figures_give_the_same_bytes_in_another_process() -> None:
    code = "from driver.tests.pages.test_drawing import figure; print(figure(('one', 'two')).svg)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert printed == figure(("one", "two")).svg and 'id="' not in printed


def test_a_picture_asks_no_network() -> None:
    spec = {"data": {"url": "https://127.0.0.1:9/figures.json"}, "mark": "point", "encoding": {"x": {"field": "x"}}}
    with pytest.raises(ValueError, match="External data url not allowed"):
        drawn(spec)


@pytest.mark.parametrize(
    "foreign",
    [
        "<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
        "<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
        "<svg xmlns='http://www.w3.org/2000/svg'><a href='javascript:alert(1)'><text>a</text></a></svg>",
        "<svg xmlns='http://www.w3.org/2000/svg'><g style='background:url(//a.example)'/></svg>",
        "<script>alert(1)</script>",
        "<svg",
        None,
        7,
    ],
)
def test_a_written_picture_is_taken_as_it_is_and_drawn_again_where_it_holds_more_than_shapes_and_texts(
    foreign: object,
) -> None:
    pictures, drawn_once = TypeAdapter(Picture), figure(("one", "two"))
    written = json.loads(pictures.dump_json(drawn_once))
    moved = written | {"svg": written["svg"].replace(">one<", ">moved<")}
    assert pictures.validate_json(json.dumps(moved)).svg == moved["svg"] != written["svg"]
    assert pictures.validate_json(json.dumps(written | {"svg": foreign})).svg == written["svg"]
