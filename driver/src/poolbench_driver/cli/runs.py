"""Commands that read the folder of a run, or tables that others recorded: report, leaderboard."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poolbench.errors import ConfigError

if TYPE_CHECKING:
    from poolbench_driver.contract.suite import Recorded
    from poolbench_driver.records import RunFolder

Output = Annotated[Path, typer.Option(help="Folder that runs lie in.")]
RunName = Annotated[str, typer.Argument(help="Run id, or 'latest'.")]
#: Columns of a figure in JSON, after what it is about.
_FIGURE = ("metric", "params", "value", "ci_low", "ci_high", "n", "status", "reason")


def report(name: RunName = "latest", output: Output = Path("runs")) -> None:
    """Write the report of a run again from its tables."""
    from poolbench_driver.records import find_run
    from poolbench_driver.report import write_report

    typer.echo(str(write_report(find_run(output, name))))


def leaderboard(
    names: Annotated[
        list[str] | None, typer.Argument(help="Run ids or 'latest'; several runs of one suite share a board.")
    ] = None,
    output: Output = Path("runs"),
    suite: Annotated[str | None, typer.Option(help="Suite that reads --table; by default that of the runs.")] = None,
    table: Annotated[
        Path | None, typer.Option(help="File or folder that others recorded: its board, without a cluster or a run.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON: one object per line of the board.")] = False,
) -> None:
    """Print the leaderboard and the other tables of runs as Markdown, or the board of a recorded table."""
    from poolbench_driver.records import find_run

    if suite is not None and table is None:
        raise ConfigError("--suite names what reads a recorded table: give --table too, or leave it out")
    run_names = names or ([] if table else ["latest"])
    folders = [find_run(output, name) for name in run_names]
    recorded = None if table is None else _recorded(table, suite, folders)
    if as_json:
        for note in recorded.notes if recorded else ():
            typer.echo(f"note: {note}", err=True)
        typer.echo(json.dumps(_content(folders, recorded), indent=1))
    else:
        parts = [*([_board(folders)] if folders else []), *([recorded.markdown] if recorded else [])]
        typer.echo("\n\n".join(parts))


def _recorded(table: Path, suite: str | None, folders: Sequence[RunFolder]) -> Recorded:
    """Return the board of a recorded table, read by the suite that is named, or else by that of the first run."""
    from poolbench_driver.contract.registry import SUITES

    if suite is None and not folders:
        raise ConfigError("--table needs a suite that reads it: give --suite, such as holmes")
    return SUITES.get(suite or folders[0].config().suite).recorded(table)


def _board(folders: Sequence[RunFolder]) -> str:
    """Return the tables of one run, or the ranks over several."""
    from poolbench_driver.report import leaderboard_markdown
    from poolbench_driver.series import Board

    if len(folders) == 1:
        return leaderboard_markdown(folders[0])
    return Board.of(folders).shown()


def _content(folders: Sequence[RunFolder], recorded: Recorded | None) -> Any:
    """Return the lines of the board of runs or of the recorded one; of both, each under its name."""
    if recorded is None:
        return _figures(folders)
    return {"runs": _figures(folders), "recorded": recorded.rows} if folders else recorded.rows


def _figures(folders: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """Return the mean ranks, and the figures that the board shows, each with its block.

    Of one run also the figures over all blocks: they compare the entrants of this run alone.
    """
    from poolbench_driver.assemble import rank_rows
    from poolbench_driver.series import Board

    board, alone = Board.of(folders), len(folders) == 1
    spec = board.spec
    measured = [row for row in board.rows if not row["metric"].startswith("rank.")]
    board_rows = [row for row in measured if row["metric"] in spec.shown or (alone and row[spec.block] is None)]
    columns = (spec.entrant, spec.block, "model", "layer", *_FIGURE)
    return [{column: row.get(column) for column in columns} for row in (*rank_rows(measured, spec)[0], *board_rows)]
