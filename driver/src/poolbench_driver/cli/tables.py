"""Tables of a command: drawn for a terminal, as fields separated by tabs, or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from poolbench.errors import ConfigError

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
    from poolbench_driver.cli.display import print_table

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
