"""What commands print: tables drawn for a terminal or as fields separated by tabs, and data as JSON or CSV.

Data goes to stdout. Notes, hints, progress and errors go to stderr.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poolbench.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from poolbench_driver.contract.page import Passage

#: The option of every command that prints data; `shared_options` adds `--csv` to those that have it.
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
#: Whether `print_data` writes CSV; commands see `--csv` as `--json`.
AS_CSV: ContextVar[bool] = ContextVar("as_csv", default=False)


def print_data(content: Any, rows: Sequence[dict[str, Any]] | None = None, *, in_one_line: bool = False) -> None:
    """Print data as JSON, or their rows as CSV with a head; a cell with a list or an object is JSON.

    Args:
        content: What JSON holds.
        rows: What CSV holds; by default the objects of `content`, or of the first list of objects in it, or itself.
        in_one_line: Whether JSON stands in a line of its own, for a stream of objects.
    """
    if not AS_CSV.get():
        typer.echo(json.dumps(content, indent=None if in_one_line else 1, ensure_ascii=False))
        return
    rows = _rows_of(content) if rows is None else rows
    writer = csv.DictWriter(sys.stdout, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    if rows:
        writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    sys.stdout.flush()


def _rows_of(content: Any) -> Sequence[dict[str, Any]]:
    if isinstance(content, list):
        return content
    lists = (value for value in content.values() if isinstance(value, list) and value and isinstance(value[0], dict))
    return next(lists, [content])


def _cell(value: Any) -> Any:
    """Return a value as CSV has it: null is empty, a text stays, and all else is JSON."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


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


def print_shaded(passage: Passage) -> None:
    """Print a text on a terminal, blue where the shade of a mark is positive and orange where it is negative."""
    from rich.console import Console
    from rich.text import Text

    text = Text(passage.text)
    for (start, end), shade in zip(passage.marks, passage.shades, strict=True):
        light = 255 - 18 * abs(shade)
        background = f"rgb({light},{light},255)" if shade > 0 else f"rgb(255,{light},{max(0, 2 * light - 255)})"
        if shade:
            text.stylize(f"black on {background}", start, end)
    Console().print(text)


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
    typer.echo("\n".join(notes), err=True)


def _plain(tables: Tables, notes: Sequence[str], _: dict[str, Any]) -> None:
    """Print one line per row, with tabs between the fields."""
    for title, rows in tables:
        if rows:
            lines = ["\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows)]
            typer.echo("\n".join([f"# {title}", *lines]))
    typer.echo("\n".join(notes), err=True)


def _json(tables: Tables, notes: Sequence[str], content: dict[str, Any]) -> None:
    print_data({**content, "notes": list(notes)}, tables[0][1])
