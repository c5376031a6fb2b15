"""Tables and paragraphs as Markdown."""

from collections.abc import Iterable, Sequence
from textwrap import fill


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a bar inside a cell is escaped."""
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
