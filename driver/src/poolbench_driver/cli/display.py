"""Tables on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def print_table(
    rows: Sequence[dict[str, Any]], columns: Sequence[str], title: str | None = None, *, whole: int = 0
) -> None:
    """Print rows as a table; if the output is not a terminal, no cell is cut."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 200).print(table_of(rows, columns, title, whole=whole))


def table_of(
    rows: Sequence[dict[str, Any]], columns: Sequence[str], title: str | None = None, *, whole: int = 0
) -> Table:
    """Return rows as a table; the cells of its first `whole` columns are never cut or wrapped."""
    from rich.table import Column, Table
    from rich.text import Text

    headers = [
        Column(name, no_wrap=True, min_width=max(len(str(row.get(name) or "")) for row in rows)) if n < whole else name
        for n, name in enumerate(columns)
    ]
    table = Table(*headers, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(Text("" if row.get(name) is None else str(row[name])) for name in columns))
    return table
