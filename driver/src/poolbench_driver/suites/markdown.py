"""Tables and paragraphs as Markdown."""

from collections.abc import Iterable, Sequence
from textwrap import fill


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a bar inside a cell is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def paragraph(text: str, indent: str = "") -> str:
    """Return a text in lines of at most 100 characters, all but the first indented."""
    return fill(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
