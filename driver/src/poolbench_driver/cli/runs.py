"""Commands on runs: run, status, watch, cancel, report."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from poolbench.config import load_run_config
from poolbench_driver.client import SERVICES
from poolbench_driver.job import Job, prepare
from poolbench_driver.progress import open_display
from poolbench_driver.rundir import RunFolder, list_runs
from poolbench_driver.session import open_session, try_health

Output = Annotated[Path, typer.Option(help="Folder that runs lie in.")]
RunName = Annotated[str, typer.Argument(help="Run id, or 'latest'.")]


def run(
    config: Annotated[Path | None, typer.Argument(help="YAML with the run's settings.")] = None,
    preset: Annotated[str | None, typer.Option(help="demo, card or full.")] = None,
    model: Annotated[str | None, typer.Option(help="Preset id, folder or Hugging Face id.")] = None,
    concepts: Annotated[str | None, typer.Option(help="Comma-separated concept ids, or 'all'.")] = None,
    strategies: Annotated[
        str | None, typer.Option(help="Comma-separated strategy ids; default: the card's.")
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="Comma-separated block indices or depths such as .5,1.0.")
    ] = None,
    metrics: Annotated[str | None, typer.Option(help="Comma-separated: d1,d2,d3.")] = None,
    corpus: Annotated[str | None, typer.Option(help="planted, real, or a folder of JSONL files.")] = None,
    limit: Annotated[
        int | None, typer.Option(help="At most this many passages a concept (train and test).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of folds, nulls, scorers and sampling.")] = None,
    keep_activations: Annotated[bool, typer.Option(help="Store the per-token hidden states too.")] = False,
    output: Output = Path("runs"),
    display: Annotated[str | None, typer.Option(help="rich, plain, json or none.")] = None,
    max_failures: Annotated[int | None, typer.Option(help="Stop after more failed tasks than this.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Say what would be done, and stop.")] = False,
    detach: Annotated[bool, typer.Option(help="Run in the background; follow it with watch.")] = False,
) -> int:
    """Measure pooling strategies; the same command again continues a run."""
    flags: dict[str, Any] = {
        "preset": preset or (None if config else "demo"),
        "model": model,
        "concepts": _names(concepts),
        "strategies": _names(strategies),
        "layers": _layers(layers),
        "metrics": _names(metrics),
        "corpus": {"source": corpus} if corpus else None,
        "seed": seed,
        "keep_activations": keep_activations or None,
        "limit": limit,
    }
    settings = load_run_config(config, {name: value for name, value in flags.items() if value is not None})
    if detach:
        return _detach(output)
    job = prepare(settings, open_session(check=True))
    if dry_run:
        typer.echo(job.describe())
        return 0
    return Job.run(job, RunFolder.create(output, job.config), open_display(display), max_failures)


def status(output: Output = Path("runs"), as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Services, queues, dead letters and runs."""
    session = open_session()
    services = [
        {
            "service": name,
            "health": try_health(session, name),
            "waiting": session.queue.depth(name),
            "dead_letters": len(session.queue.dead_letters(name)),
        }
        for name in SERVICES
    ]
    runs = [{"run": run.id, **run.read_state()} for run in list_runs(output)]
    if as_json:
        typer.echo(json.dumps({"services": services, "runs": runs}, indent=1))
        return
    _print_table("services", services, ("service", "health", "waiting", "dead_letters"))
    _print_table("runs", runs, ("run", "state", "tasks_done", "tasks", "failures", "updated_at"))


def watch(name: RunName = "latest", output: Output = Path("runs"), interval_s: float = 2.0) -> int:
    """Follow a run until it ends."""
    folder, last = RunFolder.find(output, name), ""
    while True:
        state = folder.read_state()
        line = f"{state.get('state', '?')}: {state.get('tasks_done', 0)}/{state.get('tasks', '?')} tasks"
        line += f", {state.get('failures', 0)} failures"
        if line != last:
            typer.echo(line)
            last = line
        if state.get("state") in ("done", "failures", "cancelled", "interrupted", "stopped"):
            return 0 if state["state"] == "done" else 1
        time.sleep(interval_s)


def cancel(name: RunName = "latest", output: Output = Path("runs")) -> None:
    """Ask a running driver to stop; finished work is kept."""
    folder = RunFolder.find(output, name)
    folder.file("cancel").write_text("", "utf-8")
    typer.echo(f"{folder.id} stops within a second; the same run command continues it")


def report(name: RunName = "latest", output: Output = Path("runs")) -> None:
    """Write the report of a run again from its tables."""
    from poolbench_driver.report import write_report

    typer.echo(str(write_report(RunFolder.find(output, name))))


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (run, status, watch, cancel, report):
        app.command()(command)


def _names(text: str | None) -> list[str] | None:
    return [part.strip() for part in text.split(",") if part.strip()] if text else None


def _layers(text: str | None) -> list[int | float] | None:
    if text is None:
        return None
    try:
        return [float(part) if "." in part else int(part) for part in _names(text) or []]
    except ValueError:
        raise typer.BadParameter(
            f"--layers {text}: use block indices such as 2,4 or depths such as .5,1.0"
        ) from None


def _detach(output: Path) -> int:
    """Starts this very command without --detach in a session of its own."""
    output.mkdir(parents=True, exist_ok=True)
    log = output / "detached.log"
    arguments = [argument for argument in sys.argv[1:] if argument != "--detach"]
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.argv[0], *arguments, "--display", "plain"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    typer.echo(f"running as process {process.pid}; log in {log}; follow it: poolbench-driver watch")
    return 0


def _print_table(title: str, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(str(row.get(name, "")) for name in columns))
    Console().print(table)
