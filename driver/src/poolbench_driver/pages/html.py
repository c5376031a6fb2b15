"""A page as one HTML file, without scripts and outside files."""

import re
from itertools import groupby

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup, escape

from poolbench_driver.contract.page import Cell, Column, Page, Passage, Table
from poolbench_driver.pages.drawing import bars


def html_of(page: Page, config_yaml: str) -> str:
    """Return a page as HTML, with the settings of its run at its end."""
    environment = Environment(
        loader=PackageLoader("poolbench_driver.pages", "."),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
    )
    environment.filters |= {
        "bars": _bars, "classes": _classes, "groups": _groups, "inline": _inline, "marks": pieces, "width": _width,
    }  # fmt: skip
    return environment.get_template("page.html.j2").render(page=page, config_yaml=config_yaml)


def pieces(passage: Passage) -> list[tuple[str, bool]]:
    """Return a text in pieces, with whether each is marked; what two ranges share is marked once."""
    parts, place = [], 0
    for start, end in sorted(passage.marks):
        if max(start, place) < end:
            parts += [(passage.text[place : max(start, place)], False), (passage.text[max(start, place) : end], True)]
            place = end
    return [part for part in [*parts, (passage.text[place:], False)] if part[0]]


def _bars(table: Table) -> dict[int, list[tuple[float, float, float] | None]]:
    """Return the drawn intervals of the columns that have some, by place of the column."""
    lines = [() if line.reason else line.cells for line in table.lines]
    return {
        place: bars([cells[place] if place < len(cells) else Cell() for cells in lines])
        for place, column in enumerate(table.columns)
        if column.has_intervals
    }


def _classes(cell: Cell, column: Column) -> str:
    """Return the classes of a cell: text, the word in place of a number, or a shade."""
    if column.is_text:
        return "text"
    if cell.value is None and cell.text[:1].isalpha():
        return "null"
    return f"{'k' if cell.shade > 0 else 'n'}{abs(cell.shade)}" if cell.shade else ""


def _groups(table: Table) -> list[tuple[str, int]]:
    """Return the heads over several columns, with how many columns each spans."""
    return [
        (name, sum(1 + column.has_intervals for column in columns))
        for name, columns in groupby(table.columns, key=lambda column: column.group)
    ]


def _width(table: Table) -> int:
    return sum(1 + column.has_intervals for column in table.columns)


def _inline(text: str) -> Markup:
    """Return a text whose words between backticks are code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
