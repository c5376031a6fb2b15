"""Tables on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


#: After so long without a terminal, a line says what is waited for.
_QUIET_S = 2.0


@contextmanager
def waiting(message: str) -> Iterator[None]:
    """Say on stderr what the block waits for: on a terminal while it does, elsewhere once, if it takes longer."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(message):
            yield
        return
    timer = Timer(_QUIET_S, console.print, (message,), {"soft_wrap": True})
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
