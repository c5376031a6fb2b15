"""The page kit: one page as HTML, Markdown and JSON, with every kind of block."""

import json
from typing import Any

import jsonschema
import pytest
from driver.tests.page_reader import rendered

from poolbench_driver.contract.page import (
    Answer,
    Cell,
    Column,
    Details,
    Facts,
    Group,
    Items,
    Line,
    Page,
    Part,
    Passage,
    Problem,
    Prose,
    SideBySide,
    Table,
)
from poolbench_driver.contract.suite import BoardSpec
from poolbench_driver.pages.drawing import bars, chart, number_axis, picture, points
from poolbench_driver.pages.html import html_of
from poolbench_driver.pages.plain import figure, number, plain_page, spans
from poolbench_driver.pages.text import ending_of, json_of, markdown_of, schema

NULL = {"value": None, "status": "collapsed", "reason": "one vector"}
POINT = {"x": 1, "y": 2, "says": "one: 2"}
CHART = chart([points([POINT])], number_axis("across"), number_axis("up"), 100)
FIGURE = {"value": 0.5, "ci_low": 0.25, "ci_high": 0.75, "status": "ok", "reason": None}


@pytest.fixture
def page() -> Page:
    board = Table.of(
        ["name", Column("score_of", has_intervals=True), "other"],
        [
            Line.of(Cell("a<b>", sign="●", colour="c1"), figure(FIGURE), number(1.0), is_tied=True),
            Line.of("b|c", figure(NULL), number(None)),
            Line.of("d", figure(NULL), "", reason="collapsed: one vector"),
        ],
        note="Read `score`.",
    )
    folded = Table.of(["pair"], [Line.of("folded line")])
    grouped = Table([Column("x"), Column("y", group="both"), Column("z", group="both")], [Line.of("1", "2", "3")], "T")
    shaded = Table.of(["map", "v"], [Line.of("up", Cell("1", 1.0, shade=8)), Line.of("down", Cell("-1", shade=-8))])
    blocks = [
        Prose("A `word`."),
        Items(["one", "two"]),
        Items([]),
        Facts([("run", "r1")]),
        SideBySide([("high", Passage("very\ncalm", [(0, 4)]))]),
        Group([grouped, shaded]),
        Details("more", [folded]),
        Table.of(["", Column("text", is_text=True)], [Line.of("right", Cell(passages=[Passage("<i>", [(0, 1)])]))]),
    ]
    return Page(
        title="Kit",
        subject="demo",
        answer=Answer(spans("a<b> leads", ["a<b>"]), ["It is sure."]),
        board=board,
        problems=[Problem(f"problem {n}", "part") for n in range(10)],
        picture=picture("Points", CHART, captions=[Cell("family", sign="■", colour="c2")]),
        parts=[Part("part", "A part", blocks, "Part", "How it is read."), Part("bare", "No text", [Group([])])],
    )


def test_a_page_is_html_that_escapes_what_it_quotes(page: Page) -> None:
    html, _ = rendered(page)
    assert html.startswith("<!doctype html>")
    assert (
        "<h1><em>a&lt;b&gt;</em> leads</h1>" in html and "<b>" not in html.partition("<table")[2].split("</table>")[0]
    )
    assert html.count('<tr class="tied">') == 1 and 'aria-label="0.250 to 0.750"' in html
    assert '<td class="null" colspan="3">collapsed: one vector</td>' in html
    assert '<td class="null" title="one vector">collapsed</td>' in html
    assert '<td class="k8">1</td>' in html and '<td class="n8">-1</td>' in html
    assert '<th scope="colgroup" colspan="2">both</th>' in html
    assert "<mark>very</mark>\ncalm" in html and "<mark>&lt;</mark>i&gt;" in html
    assert "<summary>2 more</summary>" in html and "<code>word</code>" in html
    assert '<a href="#part">Part</a>' in html and '<a href="#bare">' not in html


def test_markdown_has_intervals_as_a_column_and_leaves_out_what_is_folded(page: Page) -> None:
    text = markdown_of(page)
    assert text.startswith("a<b> leads It is sure.\n\n- problem 0\n")
    assert "| name | score_of | 95 % interval | other |\n" in text
    assert "| a<b> | 0.500 | 0.250 to 0.750 | 1.000 |\n| b\\|c | collapsed |  |  |" in text
    assert "### T\n\n| x | both y | both z |" in text and "- run: r1" in text and "- high: very calm" in text
    assert "folded line" not in text and "No text" not in text and "\n\n\n" not in text


def test_the_end_of_a_run_has_the_answer_the_board_and_its_limits(page: Page) -> None:
    lines = ending_of(page).splitlines()
    assert lines[1] == "a<b> leads" and lines[3].split() == ["name", "score_of", "other"]
    assert lines[4].split() == ["a<b>", "0.500", "1.000"] and lines[-1] == "problem 9"


def test_the_view_has_numbers_and_reasons_and_keeps_its_schema(page: Page) -> None:
    view = json.loads(json_of(page))
    jsonschema.validate(view, schema())
    assert view["picture"]["spec"]["layer"][0]["data"]["values"] == [POINT]
    assert 'aria-label="one: 2"' in view["picture"]["svg"]
    first, second, _ = view["board"]["lines"]
    assert first["cells"][1] | {"value": 0.5, "ci_low": 0.25, "ci_high": 0.75} == first["cells"][1]
    assert second["cells"][1]["value"] is None and second["cells"][1]["note"] == "one vector"
    assert [block["kind"] for block in view["parts"][0]["blocks"]] == [
        "prose", "items", "items", "facts", "texts", "group", "details", "table"
    ]  # fmt: skip


def test_intervals_are_drawn_on_one_scale() -> None:
    cells = [Cell(value=0.0, ci_low=0.0, ci_high=0.5), Cell(), Cell(value=1.0)]
    assert bars(cells) == [(6.0, 6.0, 55.0), None, (104.0, 104.0, 104.0)]


def test_names_are_found_whole_and_the_longest_first() -> None:
    pieces = [(span.text, span.named) for span in spans("b one, b leads abb", ["b", "b one"])]
    assert pieces == [("b one", True), (", ", False), ("b", True), (" leads abb", False)]


def test_a_suite_without_a_page_has_the_board_of_its_entrants() -> None:
    def row(name: str, value: float | None, **columns: Any) -> dict[str, Any]:
        status = "ok" if value is not None else "collapsed"
        return {
            "strategy": name,
            "concept": "c",
            "metric": "m",
            "value": value,
            "status": status,
            "reason": None,
            **columns,
        }

    ranks = {"metric": "rank.mean", "params": '{"of": "m", "board": "all"}'}
    rows = [row("b", 0.25), row("a", 0.75), row("c", None), row("a", 1.0, **ranks), row("b", 2.0, **ranks)]
    page = plain_page("own", "demo", rows, BoardSpec(ranked=("m",), shown=("m",)))
    assert page.answer.text == "a comes first of 3 on m, over 1 concept."
    assert "<h1><em>a</em> comes first" in html_of(page, "")
    few = [row("d", 1.0, n=1, **ranks), row("d", 0.9), *({**one, "n": 2} for one in rows)]
    assert plain_page("own", "demo", few, BoardSpec(ranked=("m",), shown=("m",))).answer.text.startswith(
        "a comes first"
    )
    assert "| a | 1.000 | 0.750 |\n| b | 2.000 | 0.250 |\n| c |  | collapsed |" in markdown_of(page)
