"""ls: what is registered, stored and imported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from poolbench_driver.api.listing import KINDS, Entries, listed_entries
from poolbench_driver.cli.runs import RunsFolder
from poolbench_driver.cli.tables import AsJson, print_data, print_table

#: The columns that fit into 80 characters, where a kind has more.
NARROW = {
    "strategies": ("id", "family", "board", "summary"),
    "suites": ("id", "summary"),
    "runs": ("id", "model", "concepts", "state", "updated_at"),
    "probing-sets": ("id", "type", "phenomenon", "fidelity"),
    "directions": ("concept", "strategy", "layer", "d1", "gain", "fluent up to", "model"),
}


def ls(
    kind: Annotated[str, typer.Argument(help=", ".join(KINDS))],
    output: RunsFolder = Path("runs"),
    as_json: AsJson = False,
    wide: Annotated[bool, typer.Option("--wide", help="All columns.")] = False,
) -> None:
    """List strategies, concepts, models, scorers, directions, activations, runs, suites, stories or autoencoders."""
    show_list(kind, listed_entries(kind, output), as_json=as_json, wide=wide)


def show_list(kind: str, rows: Entries, *, as_json: bool, wide: bool) -> None:
    """Print a list: what matters in 80 columns, or everything."""
    if as_json:
        print_data(rows)
    elif rows:
        columns = tuple(dict.fromkeys(name for row in rows for name in row))
        cells = rows if wide else [{name: _short(name, value) for name, value in row.items()} for row in rows]
        print_table(cells, columns if wide else NARROW.get(kind, columns), whole=1)
    else:
        typer.echo(f"no {kind}", err=True)


def _short(name: str, value: Any) -> Any:
    """Return a time without year and seconds, and other values as they are."""
    return str(value)[5:16].replace("T", " ") if name == "updated_at" else value
