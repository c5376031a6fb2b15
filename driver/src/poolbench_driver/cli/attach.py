"""Commands on runs wherever their driver works: watch, cancel."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poolbench.contracts.wire import Exit
from poolbench.errors import NotFoundError, PoolbenchError
from poolbench.statuses import RunState
from poolbench_driver.cli.runs import Output, RunName

if TYPE_CHECKING:
    from poolbench_driver.records import Run, Runs


def watch(
    name: RunName = "latest",
    output: Output = Path("runs"),
    interval_s: Annotated[float, typer.Option(help="Seconds between two looks.")] = 2.0,
) -> int:
    """Follow a run of any machine until it ends; exit code 0 when it ended without failures."""
    runs = _runs(output, name)
    run, last = runs.find(name), ""
    while True:
        state = run.state
        line = f"{state.get('state', 'unknown')}: {state.get('tasks_done', 0)}/{state.get('tasks', '?')} tasks"
        line += f", {state.get('failures', 0)} failures"
        if line != last:
            typer.echo(line)
            last = line
        if not run.unfinished:
            return _show_end(run, state)
        time.sleep(interval_s)
        run = _again(runs, run)


def cancel(name: RunName = "latest", output: Output = Path("runs")) -> int:
    """Ask the driver of a run on any machine to stop; finished work is kept, and what is in work is dropped."""
    from poolbench_driver.cluster.session import open_artifacts
    from poolbench_driver.records import RunRecords, Runs

    runs = Runs(output, RunRecords(open_artifacts().store))
    run = runs.find(name)
    state = run.state.get("state", "unknown")
    if state == RunState.STARTING:
        typer.echo(f"{run.id} is starting; cancel it when `poolbench-driver watch` shows it running", err=True)
        return Exit.FAILURES
    if not run.unfinished or runs.records is None:
        typer.echo(f"{run.id} does not run (state: {state})", err=True)
        return Exit.FAILURES
    runs.records.cancel(run.id)
    typer.echo(f"{run.id} stops within a few seconds; the same run command continues it")
    return Exit.DONE


def _runs(output: Path, name: str) -> Runs:
    """Return the runs here and in the store; those here alone if there is no store and they have the one asked for."""
    from poolbench_driver.cluster.session import open_artifacts
    from poolbench_driver.records import RunRecords, Runs

    try:
        runs = Runs(output, RunRecords(open_artifacts().store))
        runs.find(name)
        return runs
    except NotFoundError:
        raise
    except PoolbenchError as error:
        here = Runs(output, None)
        try:
            here.find(name)
        except NotFoundError:
            raise error from None
        typer.echo(f"note: only the folder of the run is read: {error}", err=True)
        return here


def _again(runs: Runs, run: Run) -> Run:
    """Look at a run again; a store that is away for some time is waited for."""
    from poolbench_driver.records import Run

    try:
        return Run(run.id, run.folder, runs.records.get(run.id) if runs.records else None)
    except PoolbenchError as error:
        if not error.retryable:
            raise
        return run


def _show_end(run: Run, state: dict[str, Any]) -> int:
    log = run.folder.file("driver.log") if run.folder else None
    if state.get("state") == RunState.DIED:
        where = f"; {log} says why" if log and log.is_file() else ""
        typer.echo(f"the driver of {run.id} is gone{where}; the same run command continues it", err=True)
    elif state.get("state") in (RunState.DONE, RunState.FAILURES):
        remote_report = f"{state.get('folder', '?')}/report/index.html on {state.get('host', 'another machine')}"
        typer.echo(f"report: {run.folder.file('report') / 'index.html' if run.folder else remote_report}")
    return Exit.DONE if state.get("state") == RunState.DONE else Exit.FAILURES
