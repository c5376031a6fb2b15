"""What tests read of a page: parts by their anchor, and cells by their head."""

import json
from urllib.parse import unquote

from poolbench_driver.contract.page import Answer, Block, Details, Group, Page, Part, Table
from poolbench_driver.evidence import entrant_of, evidence_of, paths_in
from poolbench_driver.pages.html import html_of
from poolbench_driver.pages.text import json_of, markdown_of
from poolbench_driver.records import Run
from poolbench_driver.report.making import page_of

#: A page of the frame's, of which a suite keeps nothing that a test reads.
BLANK = Page("a suite", "a model", Answer([]), Table([], []))


def part_of(page: Page, anchor: str) -> Part:
    """Return the part with an anchor."""
    (part,) = (part for part in page.parts if part.anchor == anchor)
    return part


def tables_of(*blocks: Block) -> list[Table]:
    """Return all tables of some blocks, also those that are folded."""
    tables: list[Table] = []
    for block in blocks:
        if isinstance(block, Group | Details):
            tables += tables_of(*block.blocks)
        elif isinstance(block, Table):
            tables.append(block)
    return tables


def heads_of(table: Table) -> list[str]:
    """Return the heads of the columns."""
    return [f"{column.group} {column.head}".strip() for column in table.columns]


def texts_of(table: Table) -> list[list[str]]:
    """Return the texts of the cells by line."""
    return [[cell.text for cell in line.cells] for line in table.lines]


def cells_of(table: Table) -> dict[str, dict[str, str]]:
    """Return the texts of the cells by the name of their line and the head of their column."""
    return {texts[0]: dict(zip(heads_of(table), texts, strict=True)) for texts in texts_of(table)}


def rendered(page: Page) -> tuple[str, str]:
    """Return a page as HTML and as Markdown; all three forms have the same title, board and parts."""
    html, markdown, view = html_of(page, "seed: 0"), markdown_of(page), json.loads(json_of(page))
    assert view["version"] == 1 and view["title"] == page.title
    assert [line["cells"][0]["text"] for line in view["board"]["lines"]] == [texts[0] for texts in texts_of(page.board)]
    anchors = {"leaderboard", *(part.anchor for part in page.parts)}
    assert {problem.anchor for problem in page.problems} <= {*anchors, "nulls", "made"}  # these are the frame's
    assert all(f'id="{anchor}"' in html for anchor in anchors)
    return html, markdown


def opened(folder: Run) -> dict[str, list[Part]]:
    """Return what each cell of a run's page opens, by the cell's path; all of it has to be there."""
    page = page_of(folder)
    parts = {}
    for path in paths_in([page.board, *(block for part in page.parts for block in part.blocks)]):
        kind, _, name = path.partition("/")
        parts[path] = entrant_of(folder, unquote(name)) if kind == "entrants" else evidence_of(folder, name)
    return parts
