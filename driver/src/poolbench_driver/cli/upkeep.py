"""Upkeep: gc and doctor."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from poolbench.config import asset_path
from poolbench.errors import PoolbenchError
from poolbench_driver.client import SERVICES
from poolbench_driver.job import prepare
from poolbench_driver.run import committed_keys
from poolbench_driver.rundir import list_runs
from poolbench_driver.session import open_session


def gc(
    output: Annotated[Path, typer.Option(help="Runs whose artifacts are kept.")] = Path("runs"),
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete; without it, only say what would go.")
    ] = False,
    min_age_h: Annotated[float, typer.Option(help="Spare what is younger than this.")] = 24.0,
) -> None:
    """Remove artifacts that no run below --output needs."""
    session = open_session()
    keep: set[str] = set()
    for folder in list_runs(output):
        plan = prepare(folder.config(), session).plan
        keep |= set(plan.local) | {key for task in plan.tasks.values() for key in task.outputs.values()}
    horizon = time.time() - min_age_h * 3600
    young = {
        info.path.split("/")[1]
        for prefix in ("artifacts/", "restricted/")
        for info in session.artifacts.store.list(prefix)
        if info.modified_s > horizon
    }
    doomed = sorted(committed_keys(session.artifacts) - keep - young)
    for key in doomed if delete else []:
        session.artifacts.delete(key)
    typer.echo(
        f"{len(doomed)} artifacts {'deleted' if delete else 'could go (--delete)'}; {len(keep)} are in use"
    )


def doctor() -> int:
    """Check assets, object store, broker, token and every service; exit code 1 when something is wrong."""
    results = [
        _check("demo model", lambda: asset_path("demo_lm")),
        _check("annotator", lambda: asset_path("annotator")),
    ]
    try:
        session = open_session()
    except PoolbenchError as error:
        typer.echo(f"FAIL  cluster: {error}")
        return 1
    results.append(_check("object store", lambda: session.artifacts.store.exists("none")))
    results.append(_check("broker", session.queue.ping))
    results += [_check(name, lambda name=name: session.services.get(name, "health")) for name in SERVICES]
    return 0 if all(results) else 1


def _check(what: str, check) -> bool:  # type: ignore[no-untyped-def]
    try:
        check()
    except PoolbenchError as error:
        typer.echo(f"FAIL  {what}: {error}")
        return False
    typer.echo(f"ok    {what}")
    return True


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (gc, doctor):
        app.command()(command)
