"""What a run prints at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from poolbench.contracts.wire import Exit
from poolbench.statuses import RunState

if TYPE_CHECKING:
    from poolbench_driver.job import Outcome


def show_outcome(found: Outcome) -> int:
    """Print what a run came to; return the exit code, which is 1 after failures or a cancellation."""
    if found.state == RunState.CANCELLED:
        return Exit.FAILURES
    if found.conclusion.shown:
        files = ", ".join(str(found.folder.file(name)) for name in found.conclusion.files)
        typer.echo(f"{found.conclusion.shown}: {files}" if files else found.conclusion.shown)
    typer.echo(f"{found.answer}\n\nreport: {found.report}\nresults digest: {found.digest}")
    if failures := found.failures:
        blocked = sum(failure.blocked for failure in failures)
        without = f", {blocked} more could not be tried without them" if blocked else ""
        where = found.folder.file("failures.parquet")
        typer.echo(f"{len(failures) - blocked} tasks failed{without}: {where}; the same command tries again")
    if found.empty:
        typer.echo(f"no figure could be computed: {found.empty}", err=True)
    if found.conclusion.wrong:
        suite = found.folder.config().suite
        typer.echo(f"not as the suite {suite} expects: {'; '.join(found.conclusion.wrong)}", err=True)
    return Exit.DONE if found.done else Exit.FAILURES
