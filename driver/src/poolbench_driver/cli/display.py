"""Tables on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def print_table(rows: Sequence[dict[str, Any]], columns: Sequence[str], title: str | None = None) -> None:
    """Print rows as a table; if the output is not a terminal, no cell is cut."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 200).print(table_of(rows, columns, title))


def table_of(rows: Sequence[dict[str, Any]], columns: Sequence[str], title: str | None = None) -> Table:
    """Return rows as a table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(Text("" if row.get(name) is None else str(row[name])) for name in columns))
    return table
