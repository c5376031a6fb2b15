"""A page as HTML. It reads, prints and works for a screen reader without scripts; those of `front` add to it."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from itertools import groupby, zip_longest

from poolbench_driver.contract.page import (
    NUM_SHADES,
    Answer,
    Block,
    Cell,
    Column,
    Details,
    Facts,
    Form,
    Group,
    Items,
    Line,
    Page,
    Part,
    Passage,
    Picture,
    Problem,
    Prose,
    SideBySide,
    Span,
    Table,
)
from poolbench_driver.pages.drawing import bars
from poolbench_driver.pages.markup import Content, Html, element, joined

#: Problems that a page shows before its reader asks for more.
_FIRST_PROBLEMS = 8
#: Share of the shade's colour by step.
_SHADES = (8, 15, 23, 30, 38, 46, 54, 62)
_SCRIPTS = ("page.js",)
_PREACT = "vendor/htm-preact.js"


@dataclass(frozen=True)
class Surroundings:
    """The frame of a page: empty for a file, and the navigation of the console where the page is served."""

    links: Sequence[tuple[str, str]] = ()  # address and name of the other views
    scripts: Sequence[str] = ()  # further files of `front`, which may use Preact
    fragments: Mapping[str, Sequence[Part]] = field(default_factory=dict)  # what a file itself opens, by address


def html_of(page: Page, config_yaml: str = "", around: Surroundings | None = None, contents: Content = None) -> str:
    """Return a page as one HTML file without outside files.

    Args:
        config_yaml: The settings of the run, which stand at the end of the page.
        around: The surroundings of the page.
        contents: Further elements, above the board.
    """
    around = around or Surroundings()
    css, scripts = _css(), _scripts(*around.scripts)
    hashes = " ".join(f"'sha256-{b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'; "
        "form-action 'self'; base-uri 'self'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{page.title}: {page.subject}"),
        element("style", Html(css)),
    )
    folded = element("details", element("summary", "config.resolved.yaml"), element("pre", config_yaml))
    body = element(
        "body",
        element("a", "To the content", href="#content", class_="skip"),
        _header(page, around),
        element("main", _main(page, contents), folded if config_yaml else None, id="content"),
        *(element("template", parts_html(parts), data_opens=path) for path, parts in around.fragments.items()),
        *(element("script", Html(script)) for script in scripts),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def notebook_html(answer: Answer | None, parts: Iterable[Part]) -> str:
    """Return parts of a page for a notebook: static, without links, with their own style for light and dark themes."""
    headline = None if answer is None else [_headline(answer), _sentences(answer)]
    static = [part.with_cells(lambda cell: replace(cell, opens="")) for part in parts]
    contents = [_part(part) if part.heading else [_block(block) for block in part.blocks] for part in static]
    return element(
        "div", element("style", Html(_notebook_css())), headline, contents, class_=f"{_IN_NOTEBOOK} {_NO_FORMULAS}"
    )


#: Class of what a notebook draws; its style applies below it only.
_IN_NOTEBOOK = "poolbench"
#: Classes in which MathJax 3 and 2 leave `$5 to $10` as it is.
_NO_FORMULAS = "mathjax_ignore tex2jax_ignore"
#: What of the page's style is of the whole page.
_OF_PAGE = (":root", "@media (prefers", "html", "body", "header", "nav")


@cache
def _notebook_css() -> str:
    """Return the style of static parts. JupyterLab and VS Code name their theme. Other notebooks use the theme of
    the system.
    """
    light, dark = (names.replace("color-scheme: light dark;", "") for names in re.findall(r":root {([^}]*)}", _css()))
    static = "\n\n".join(_front("page.css").split("\n\n")[:2]).splitlines()
    rules = "\n".join(line for line in static if not line.startswith(_OF_PAGE))
    at = f".{_IN_NOTEBOOK}"
    return f"""
{at} {{ {light} background: var(--bg); color: var(--ink); font: 14px/1.5 system-ui, sans-serif; padding: .5rem .8rem; }}
@media (prefers-color-scheme: dark) {{ {at} {{ {dark} }} }}
[data-jp-theme-light="true"] {at}, .vscode-light {at} {{ {light} }}
[data-jp-theme-light="false"] {at}, .vscode-dark {at} {{ {dark} }}
{at}{at} {{ {rules}
figure {{ max-width: 36rem; }}
{_shades()} }}"""


@cache
def _css() -> str:
    return f"{_front('page.css')}{_shades()}"


def _shades() -> str:
    shades = (
        f".k{step} {{ background: rgba(37, 99, 235, .{share:02}); }} "
        f".n{step} {{ background: rgba(217, 119, 6, .{share:02}); }}"
        for step, share in zip(range(1, NUM_SHADES + 1), _SHADES, strict=True)
    )
    return "\n".join(shades)


@cache
def _scripts(*further: str) -> tuple[str, ...]:
    return tuple(_front(name) for name in (*([_PREACT] if further else []), *_SCRIPTS, *further))


def _front(name: str) -> str:
    return (files("poolbench_driver.pages") / "front" / name).read_text("utf-8")


def _header(page: Page, around: Surroundings) -> Html:
    anchors = [
        *([("#leaderboard", "Board")] if page.board.columns and not around.links else []),
        *((f"#{part.anchor}", part.label) for part in page.parts if part.label),
    ]
    names = [name for _, name in around.links]
    links = [
        element("a", name, href=address, aria_current="page" if name == page.title else None)
        for address, name in around.links
    ]
    return element(
        "header",
        element("nav", links, aria_label="Console") if links else None,
        None if page.title in names else element("b", page.title),
        element("nav", [_link(*link) for link in anchors], aria_label="Parts of the page"),
        element("span", page.subject),
    )


def _link(address: str, name: str) -> Html:
    return element("a", name, href=address)


def _main(page: Page, contents: Content) -> Content:
    answer = [_headline(page.answer), _sentences(page.answer), _problems(page.problems)]
    return [
        element(
            "div",
            element("div", answer),
            _picture(page.picture) if page.picture else None,
            class_="first" if page.picture else "first plain",
        ),
        _form(page.form) if page.form else None,
        contents,
        _board(page.board) if page.board.columns else None,
        [_part(part) for part in page.parts],
    ]


def _headline(answer: Answer) -> Html:
    return element("h1", [element("em", span.text) if span.named else span.text for span in answer.headline])


def _sentences(answer: Answer) -> Content:
    return [element("p", _inline(sentence), class_="answer") for sentence in answer.sentences]


def _board(board: Table) -> Content:
    return [
        element("h2", board.title or "Board", id="leaderboard"),
        element("p", _inline(board.note), class_="note") if board.note else None,
        _table(board, is_board=True),
    ]


def _problems(problems: Sequence[Problem]) -> Content:
    if not problems:
        return None
    items = [
        element("li", element("b", "!"), element("span", problem.text), _link(f"#{problem.anchor}", "why"))
        for problem in problems
    ]
    first, more = items[:_FIRST_PROBLEMS], items[_FIRST_PROBLEMS:]
    folded = element("details", element("summary", f"{len(more)} more"), element("ul", more, class_="problems"))
    return [
        element("ul", first, class_="problems", aria_label="Limits of the answer"),
        folded if more else None,
    ]


def parts_html(parts: Iterable[Part]) -> Html:
    """Return parts of a page without the page around them, for use elsewhere."""
    return joined([_part(part) for part in parts])


def _part(part: Part) -> Html:
    contents = [
        element("p", _inline(part.note), class_="note") if part.note else None,
        [_block(block) for block in part.blocks],
    ]
    if part.is_folded:
        return element("details", element("summary", part.heading), contents, id=part.anchor)
    return joined([element("h2", part.heading, id=part.anchor), contents])


def _block(block: Block) -> Content:
    match block:
        case Table():
            return _table(block)
        case Picture():
            return _picture(block)
        case Form():
            return _form(block)
        case Prose():
            return element("p", _inline(block.text))
        case Items():
            return element("ul", [element("li", _inline(line)) for line in block.lines]) if block.lines else None
        case Facts():
            return element("dl", [(element("dt", name), element("dd", fact)) for name, fact in block.pairs])
        case SideBySide():
            figures = [
                element("figure", element("figcaption", caption), element("p", marked(passage), dir="auto"))
                for caption, passage in block.texts
            ]
            return element("div", figures, class_="group")
        case Group():
            return element("div", [_block(one) for one in block.blocks], class_="group")
        case Details():
            return element("details", element("summary", block.summary), [_block(one) for one in block.blocks])


def _picture(picture: Picture) -> Html:
    captions = [element("span", _content(caption)) for caption in picture.captions]
    return element("figure", Html(picture.svg), element("figcaption", captions) if captions else None)


def _form(form: Form) -> Html:
    """Return a form whose fields become the query of the page's address."""
    labels = []
    for entry in form.fields:
        if entry.choices:
            options = [
                element("option", name, value=value, selected=value == entry.value) for value, name in entry.choices
            ]
            control = element("select", options, name=entry.name)
        else:
            control = element("input", name=entry.name, value=entry.value, type="search", autocomplete="off")
        labels.append(element("label", element("span", entry.label), control))
    hidden = [element("input", type="hidden", name=name, value=value) for name, value in form.hidden]
    return element("form", labels, hidden, element("button", form.button), class_="choices", action=form.action or None)


def _table(table: Table, *, is_board: bool = False) -> Html:
    caption = None
    if not is_board and (table.title or table.note):
        title = (element("b", table.title), " ") if table.title else None
        caption = element("caption", title, _inline(table.note))
    groups = None
    if any(column.group for column in table.columns):
        groups = element("tr", [_group_head(*group) for group in _groups(table)])
    rows = element(
        "table",
        caption,
        element("thead", groups, element("tr", [_head(column) for column in table.columns])),
        element("tbody", _lines(table)),
        class_="board" if is_board else table.style,
    )
    return element("div", rows, class_="scroll", tabindex="0", role="group", aria_label=_name_of(table, is_board))


def _name_of(table: Table, is_board: bool) -> str:
    return "Board" if is_board else table.title or f"Table of {table.columns[0].head}"


def _group_head(name: str, columns: int) -> Html:
    # An empty corner names nothing.
    return element("th", name, scope="colgroup", colspan=columns) if name else element("td", colspan=columns)


def _head(column: Column) -> Html:
    if not column.head:  # an empty head names nothing
        return element("td")
    words = [(element("wbr") if place else None, part) for place, part in enumerate(re.split(r"(?<=_)", column.head))]
    text = element("a", words, href=column.link) if column.link else words
    is_left = column.is_text or column.has_intervals
    return element(
        "th",
        text,
        scope="col",
        colspan=2 if column.has_intervals else None,
        class_="text" if is_left else None,
        title=column.definition or None,
        aria_sort=column.order or None,
    )


def _lines(table: Table) -> list[Html]:
    drawn = _bars(table)
    rows = []
    for number, line in enumerate(table.lines):
        first, cells = line.cells[0], []
        if line.reason:
            cells.append(element("td", line.reason, class_="null", colspan=_width(table) - 1))
        else:
            for place, (cell, column) in enumerate(zip(line.cells[1:], table.columns[1:], strict=False), start=1):
                cells.append(
                    element("td", _content(cell), class_=_classes(cell, column) or None, title=cell.note or None)
                )
                if column.has_intervals:
                    cells.append(_bar(drawn[place][number], cell))
        head = element("th", _content(first), _band(line), scope="row", title=first.note or None)
        rows.append(element("tr", head, cells, class_="tied" if line.is_tied else None))
    return rows


def _band(line: Line) -> Content:
    """Return the blue edge in words, for a screen reader."""
    return element("span", "marked by the edge", class_="unseen") if line.is_tied else None


def _content(cell: Cell) -> Content:
    content: Content = cell.text
    if cell.passages:
        content = [(element("br") if place else None, marked(passage)) for place, passage in enumerate(cell.passages)]
    if cell.opens:
        is_page = cell.opens.endswith("/") or "?" in cell.opens  # which replaces this one; others open in a dialog
        content = element("a", content, href=cell.opens, data_opens=None if is_page else cell.opens)
    if not cell.sign:
        return content
    colour = f"color:var(--{cell.colour})" if cell.colour else None
    return [element("span", cell.sign, class_="mark", style=colour, aria_hidden="true"), content]


def _bar(ends: tuple[float, float, float] | None, cell: Cell) -> Html:
    if ends is None:
        return element("td", class_="drawn")
    low, middle, high = ends
    shapes = (
        f'<line class="base" x1="0" x2="110" y1="7" y2="7"/><line class="range" x1="{low}" x2="{high}" y1="7" y2="7"/>'
        f'<circle cx="{middle}" cy="7" r="3.6"/>'
    )
    label = cell.interval or cell.text
    drawing = element("svg", Html(shapes), class_="bar", viewBox="0 0 110 14", role="img", aria_label=label)
    return element("td", drawing, class_="drawn")


def _bars(table: Table) -> dict[int, list[tuple[float, float, float] | None]]:
    """Return the drawn intervals of the columns that have some, by place of the column."""
    columns = zip_longest(*(() if line.reason else line.cells for line in table.lines), fillvalue=Cell())
    cells_by_column = dict(enumerate(columns))
    return {
        place: bars(cells_by_column.get(place, ()) or [Cell()] * len(table.lines))
        for place, column in enumerate(table.columns)
        if column.has_intervals
    }


def _classes(cell: Cell, column: Column) -> str:
    """Return the classes of a cell: text, the word in place of a number, or a shade."""
    if column.is_text:
        return "text"
    if cell.value is None and cell.text[:1].isalpha():
        return "null"
    return _shade(cell.shade)


def _shade(step: int) -> str:
    """Return the CSS class of a shade from -8 (orange) to 8 (blue), or "" for 0."""
    return f"{'k' if step > 0 else 'n'}{abs(step)}" if step else ""


def _groups(table: Table) -> list[tuple[str, int]]:
    """Return the heads over several columns, with how many columns each spans."""
    return [
        (name, sum(1 + column.has_intervals for column in columns))
        for name, columns in groupby(table.columns, key=lambda column: column.group)
    ]


def _width(table: Table) -> int:
    return sum(1 + column.has_intervals for column in table.columns)


def pieces(passage: Passage) -> list[tuple[str, bool]]:
    """Split a text into pieces, each with whether it is marked. The overlap of two ranges is marked once."""
    parts, place = [], 0
    for start, end in sorted(passage.marks):
        if max(start, place) < end:
            parts += [(passage.text[place : max(start, place)], False), (passage.text[max(start, place) : end], True)]
            place = end
    return [part for part in [*parts, (passage.text[place:], False)] if part[0]]


def marked(passage: Passage) -> Content:
    """Return a text whose marked ranges are elements. If the passage has shades, ranges are shaded, not marked."""
    if passage.shades:
        parts, place = [], 0
        for (start, end), shade in zip(passage.marks, passage.shades, strict=True):
            parts += [passage.text[place:start], element("span", passage.text[start:end], class_=_shade(shade) or None)]
            place = end
        return [*parts, passage.text[place:]]
    return [element("mark", text) if is_marked else text for text, is_marked in pieces(passage)]


def _inline(text: str) -> Content:
    """Return a text whose words between backticks are code."""
    parts = re.split(r"`([^`]+)`", text)
    return [element("code", part) if place % 2 else part for place, part in enumerate(parts)]


def login_html(said: str) -> str:
    """Return the page that asks for a cluster's token. `said` is the error of the last token, or ""."""
    page = Page("PoolBench", "console", Answer([Span("Sign in to the console of this cluster.")]), Table.of([], []))
    token = element("input", type="password", name="token", autocomplete="current-password", required=True)
    form = element(
        "form",
        element("label", element("span", "Token (POOLBENCH_TOKEN of the cluster)"), token),
        element("button", "Sign in"),
        element("p", said, role="alert") if said else None,
        method="post",
        class_="choices",
    )
    return html_of(page, contents=form)
