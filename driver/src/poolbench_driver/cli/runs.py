"""Commands that read the folder of a run: report, leaderboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Output = Annotated[Path, typer.Option(help="Folder that runs lie in.")]
RunName = Annotated[str, typer.Argument(help="Run id, or 'latest'.")]


def report(name: RunName = "latest", output: Output = Path("runs")) -> None:
    """Write the report of a run again from its tables."""
    from poolbench_driver.records import find_run
    from poolbench_driver.report import write_report

    typer.echo(str(write_report(find_run(output, name))))


def leaderboard(name: RunName = "latest", output: Output = Path("runs")) -> None:
    """Print the leaderboard and the other tables of a run as Markdown."""
    from poolbench_driver.records import find_run
    from poolbench_driver.report import leaderboard_markdown

    typer.echo(leaderboard_markdown(find_run(output, name)))
