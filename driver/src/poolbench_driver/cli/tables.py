"""Tables of commands: drawn for a terminal, as fields separated by tabs, or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from poolbench.errors import ConfigError

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


Tables = Sequence[tuple[str, list[dict[str, Any]]]]
#: Shows tables with their titles, then notes; JSON is made of the content instead.
Show = Callable[[Tables, Sequence[str], dict[str, Any]], None]


def show_tables(name: str | None) -> Show:
    """Return what shows tables as `rich` (default in a terminal), `plain` or `json`; raise ConfigError otherwise."""
    display = name or ("rich" if sys.stdout.isatty() else "plain")
    shows: dict[str, Show] = {"rich": _rich, "plain": _plain, "json": _json}
    if display not in shows:
        raise ConfigError(f"unknown display {display!r}; use {', '.join(shows)}")
    return shows[display]


def _rich(tables: Tables, notes: Sequence[str], _: dict[str, Any]) -> None:

    for title, rows in tables:
        if rows:
            print_table(rows, list(rows[0]), title)
    typer.echo("\n".join(notes))


def _plain(tables: Tables, notes: Sequence[str], _: dict[str, Any]) -> None:
    """Print one line per row, with tabs between the fields."""
    for title, rows in tables:
        if rows:
            lines = ["\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows)]
            typer.echo("\n".join([f"# {title}", *lines]))
    typer.echo("\n".join(notes))


def _json(_: Tables, notes: Sequence[str], content: dict[str, Any]) -> None:
    typer.echo(json.dumps({**content, "notes": list(notes)}, indent=1))
