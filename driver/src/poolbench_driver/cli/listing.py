"""ls: what is registered and what there is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from poolbench.concepts import list_concepts
from poolbench.config import MODEL_PRESETS
from poolbench.errors import UnknownNameError
from poolbench.pooling.registry import all_strategies
from poolbench.suites import all_suites
from poolbench_driver.rundir import list_runs
from poolbench_driver.session import open_session

Rows = list[dict[str, Any]]


def _strategies(_: Path) -> Rows:
    return [
        {
            "id": s.id, "version": s.version, "family": s.family, "board": s.board, "status": s.status,
            "needs": ",".join(s.needs), "summary": s.summary,
        }
        for s in all_strategies()
    ]  # fmt: skip


def _concepts(_: Path) -> Rows:
    return [
        {
            "id": c.id,
            "family": c.family,
            "matched pairs": c.matched_pairs,
            "sensitive": c.sensitive,
            "distant neighbour": c.neighbours.linguistically_distant,
            "close neighbour": c.neighbours.linguistically_close,
        }
        for c in list_concepts()
    ]


def _models(_: Path) -> Rows:
    return [
        {"id": m.id, "source": m.source, "dtype": m.dtype, "summary": m.summary}
        for m in MODEL_PRESETS.values()
    ]


def _suites(_: Path) -> Rows:
    return [{"id": suite.id, "summary": suite.summary} for suite in all_suites().values()]


def _scorers(_: Path) -> Rows:
    store = open_session().artifacts.store
    return [{"pointer": i.path, "modified_s": round(i.modified_s)} for i in store.list("scorers/")]


def _runs(output: Path) -> Rows:
    return [{"id": run.id, **run.read_state()} for run in list_runs(output)]


KINDS: dict[str, Callable[[Path], Rows]] = {
    "strategies": _strategies,
    "concepts": _concepts,
    "models": _models,
    "scorers": _scorers,
    "runs": _runs,
    "suites": _suites,
}


def ls(
    kind: Annotated[str, typer.Argument(help=", ".join(KINDS))],
    output: Annotated[Path, typer.Option(help="Folder that runs lie in.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List strategies, concepts, models, scorers, runs or suites."""
    if kind not in KINDS:
        raise UnknownNameError("kind", kind, KINDS)
    rows = KINDS[kind](output)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(*columns)
    for row in rows:
        table.add_row(*(str(row.get(name, "")) for name in columns))
    Console().print(table)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(ls)
