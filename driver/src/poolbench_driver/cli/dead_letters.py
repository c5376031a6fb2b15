"""dead-letters: list, show, send again and drop messages that are delivered no more."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from poolbench.contracts.wire import Exit
from poolbench.errors import ConfigError
from poolbench_driver.cli.tables import AsJson, print_data, print_table

if TYPE_CHECKING:
    from poolbench.queue.letters import StoredLetter
    from poolbench_driver.cluster.dead_letters import DeadLetters, LetterFilter, Report

app = typer.Typer(help="List, show, send again and drop dead letters.", no_args_is_help=True)

Ids = Annotated[list[str] | None, typer.Argument(help="Ids, or beginnings of ids.", metavar="ID")]
Service = Annotated[str | None, typer.Option(help="Only letters of this service.")]
Kind = Annotated[str | None, typer.Option(help="Only letters of tasks of this kind, such as prober.probe.")]
Since = Annotated[str | None, typer.Option(help="Only letters since then: an age such as 36h, or a time (UTC).")]

#: Digits of an id in tables. `show`, `retry` and `drop` take any unambiguous beginning.
_SHORT = 12
_COLUMNS = ("id", "service", "at", "task", "kind", "size", "reason")


@app.command()
def ls(service: Service = None, kind: Kind = None, since: Since = None, as_json: AsJson = False) -> None:
    """List dead letters, oldest first."""
    from poolbench_driver.cluster.dead_letters import listed_letters, when
    from poolbench_driver.cluster.services import open_services

    rows = listed_letters(open_services()).rows(_selection(service, kind, since))
    if as_json:
        print_data(rows)
    elif rows:
        short = [{"id": row["id"][:_SHORT], "task": row["task_id"], "at": when(row["at"])} for row in rows]
        print_table([row | cells for row, cells in zip(rows, short, strict=True)], _COLUMNS)
    else:
        typer.echo("no dead letters", err=True)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Id, or its beginning.", metavar="ID")], as_json: AsJson = False
) -> None:
    """Show all of one dead letter."""
    from poolbench_driver.cluster.dead_letters import listed_letters
    from poolbench_driver.cluster.services import open_services

    fields = listed_letters(open_services()).details(name)
    if as_json:
        print_data(fields)
        return
    for field, value in fields.items():
        if field not in ("task", "text"):
            typer.echo(f"{field + ':':<12}{'unknown' if value is None else value}")
    if fields["task"] is not None:
        typer.echo(f"task:\n{json.dumps(fields['task'], indent=1)}")
    if text := fields.get("text"):
        typer.echo(f"text:\n{text}")


@app.command()
def retry(
    ids: Ids = None,
    every: Annotated[bool, typer.Option("--all", help="All letters that the filters select.")] = False,
    service: Service = None,
    kind: Kind = None,
    since: Since = None,
) -> int:
    """Send the tasks of dead letters to their queues again, and remove the letters."""
    from poolbench_driver.cluster.dead_letters import open_letters

    letters = open_letters()
    return _show(letters.retry(_chosen(letters, ids, every, _selection(service, kind, since))), every)


@app.command()
def drop(
    ids: Ids = None,
    every: Annotated[bool, typer.Option("--all", help="All letters that the filters select.")] = False,
    service: Service = None,
    kind: Kind = None,
    since: Since = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --all: do not ask.")] = False,
) -> int:
    """Remove dead letters without sending their tasks again."""
    from poolbench_driver.cluster.dead_letters import open_letters

    letters = open_letters()
    selection = _chosen(letters, ids, every, _selection(service, kind, since))
    if every and selection and not yes and not _agreed(len(selection)):
        typer.echo("nothing was dropped", err=True)
        return Exit.DONE
    return _show(letters.drop(selection), every)


def _selection(service: str | None, kind: str | None, since: str | None) -> LetterFilter:
    from poolbench_driver.cluster.dead_letters import LetterFilter, read_since

    return LetterFilter(service, kind, read_since(since))


def _chosen(letters: DeadLetters, ids: list[str] | None, every: bool, selection: LetterFilter) -> list[StoredLetter]:
    """Return the letters that a command line names, by ids or by --all and filters."""
    if bool(ids) == every:
        raise ConfigError("give the ids of dead letters, or --all: `poolbench-driver dead-letters ls` lists them")
    if ids and (selection.service, selection.kind, selection.since) != (None, None, None):
        raise ConfigError("--service, --kind and --since go with --all, not with ids")
    return letters.find(ids) if ids else letters.select(selection)


def _agreed(number: int) -> bool:
    try:
        return typer.confirm(f"drop {number} dead letters? Their tasks are not sent again")
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        raise ConfigError("nothing was dropped: --all asks first; give --yes where there is no terminal") from None


def _show(reports: Iterable[Report], every: bool) -> int:
    """Print one line per letter; return 1 if a letter is left that was asked for."""
    from poolbench_driver.cluster.dead_letters import LetterOutcome

    counts: Counter[LetterOutcome] = Counter()
    for report in reports:
        counts[report.verdict] += 1
        letter, why = report.letter, f": {report.why}" if report.why else ""
        name = " ".join(filter(None, (letter.letter_id[:_SHORT], letter.service, letter.task_id)))
        typer.echo(f"{name} {report.verdict}{why}", err=report.verdict in (LetterOutcome.HELD, LetterOutcome.NO_TASK))
    if not counts:
        typer.echo("no dead letters", err=True)
    left_over = counts[LetterOutcome.HELD] + (0 if every else counts[LetterOutcome.NO_TASK])
    return Exit.FAILURES if left_over else Exit.DONE
