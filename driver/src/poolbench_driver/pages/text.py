"""A page as Markdown or JSON, and the end of it that a run prints."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from textwrap import fill
from typing import Any

from pydantic import TypeAdapter

from poolbench_driver.contract.page import Block, Cell, Column, Line, Page, Part, Passage, Table


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. Bars inside cells are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def interval(ends: Sequence[float | None] | None, spec: str) -> str:
    """Return the two ends of an interval as text, empty where there are none."""
    return "" if ends is None or ends[0] is None else f"{ends[0]:{spec}} to {ends[1]:{spec}}"


def with_interval(value: float, ends: Sequence[float | None] | None, spec: str) -> str:
    """Return a value and, in parentheses, its interval if it has one."""
    return f"{value:{spec}}" + (f" ({ends_text})" if (ends_text := interval(ends, spec)) else "")


def items(lines: Iterable[str]) -> str:
    """Return a list."""
    return "\n".join(f"- {line}" for line in lines)


def listed(names: Iterable[str], most: int = 3) -> str:
    """Return the first names, and how many more there are."""
    entries = list(names)
    return ", ".join(entries[:most]) + (f" and {len(entries) - most} more" if len(entries) > most else "")


def paragraph(text: str, indent: str = "") -> str:
    """Return a text in lines of at most 100 characters, all but the first indented."""
    return fill(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


#: Lines of the board at the end of a run, and characters of its width.
_LINES, _WIDTH = 6, 100


def markdown_of(page: Page) -> str:
    """Return a page as Markdown: its answer, its limits, its board and its parts, without pictures and details."""
    answer = [" ".join([page.answer.text, *page.answer.sentences]), items(problem.text for problem in page.problems)]
    return "\n\n".join([*filter(None, answer), "## Board", *block_markdown(page.board), *parts_markdown(page.parts)])


def parts_markdown(parts: Sequence[Part]) -> Iterator[str]:
    """Yield the headings, tables and paragraphs of parts of a page. Parts without text are left out."""
    for part in parts:
        blocks = [text for block in part.blocks for text in block_markdown(block)]
        if blocks:
            yield f"## {part.heading}"
            yield from filter(None, [part.note])
            yield from blocks


def ending_of(page: Page) -> str:
    """Return the last lines of a run's output: its answer, the first lines of its board, and its problems."""
    cells = [[column.head for column in page.board.columns]]
    cells += [[cell.text for cell in line.cells] for line in page.board.lines[:_LINES]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    while len(widths) > 2 and sum(widths) + 2 * len(widths) > _WIDTH:
        widths.pop()
    board = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=False)).rstrip() for line in cells]
    return "\n".join(["", page.answer.text, "", *board, "", *(problem.text for problem in page.problems)])


def block_markdown(block: Block) -> Iterator[str]:
    """Yield a block as Markdown. Yield nothing if the block has no text."""
    match block.kind:
        case "table":
            yield from _table(block)
        case "prose":
            yield block.text
        case "items" if block.lines:
            yield items(block.lines)
        case "facts":
            yield items(f"{name}: {value}" for name, value in block.pairs)
        case "texts":
            yield items(f"{caption}: {_in_one_line(passage)}" for caption, passage in block.texts)
        case "group":
            for one in block.blocks:
                yield from block_markdown(one)


def _table(block: Table) -> Iterator[str]:
    if block.title:
        yield f"### {block.title}{f': {block.note}' if block.note else ''}"
    elif block.note:
        yield block.note
    if block.lines:
        heads = [_heads(place, column, block.lines) for place, column in enumerate(block.columns)]
        lines = [_cells(line, heads) for line in block.lines]
        yield table([head for column_heads in heads for head in column_heads], lines)


def _heads(place: int, column: Column, lines: Sequence[Line]) -> list[str]:
    """Return the head of a column, and a second head for intervals if some line has an interval."""
    head = f"{column.group} {column.head}".strip()
    has_interval = any(cell.interval for line in lines for cell in line.cells[place : place + 1])
    return [head, "95 % interval"] if column.has_intervals and has_interval else [head]


def _cells(line: Line, heads: Sequence[Sequence[str]]) -> list[str]:
    """Return the texts of a line, with the interval after each text whose column has a head for intervals."""
    texts = []
    for place, column_heads in enumerate(heads):
        cell = line.cells[place] if place < len(line.cells) else Cell()
        texts += [" / ".join(map(_in_one_line, cell.passages)) or cell.text, cell.interval][: len(column_heads)]
    return texts


def _in_one_line(passage: Passage) -> str:
    return " ".join(passage.text.split())


@cache
def _pages() -> TypeAdapter[Page]:
    return TypeAdapter(Page)


def json_of(page: Page) -> str:
    """Return a page as JSON. Numbers stand beside their texts, and each null has its reason."""
    return _pages().dump_json(page, indent=1).decode()


def page_from(content: bytes) -> Page:
    """Parse the JSON of a page. Raise ValueError if it is not a page of this version."""
    return _pages().validate_json(content)


def schema() -> dict[str, Any]:
    """Return the JSON schema of a page."""
    return _pages().json_schema(mode="serialization")
