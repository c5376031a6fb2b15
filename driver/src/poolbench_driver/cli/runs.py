"""Commands that make or read the folder of a run: run, report, leaderboard."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poolbench.contracts.wire import Exit
from poolbench.statuses import RunState

if TYPE_CHECKING:
    from poolbench.config import RunConfig
    from poolbench_driver.job import Job
    from poolbench_driver.rundir import RunFolder

Output = Annotated[Path, typer.Option(help="Folder that runs lie in.")]
RunName = Annotated[str, typer.Argument(help="Run id, or 'latest'.")]


def run(
    config: Annotated[Path | None, typer.Argument(help="YAML with the run's settings.")] = None,
    preset: Annotated[str | None, typer.Option(help="demo, card or full.")] = None,
    suite: Annotated[str | None, typer.Option(help="poolbench, or planted: check the strategies themselves.")] = None,
    protocol: Annotated[str | None, typer.Option(help="corrected; published adds the reference's own figures.")] = None,
    model: Annotated[str | None, typer.Option(help="Preset id, folder or Hugging Face id.")] = None,
    concepts: Annotated[str | None, typer.Option(help="Comma-separated concept ids, or 'all'.")] = None,
    strategies: Annotated[str | None, typer.Option(help="Comma-separated ids or boards; default: card.")] = None,
    layers: Annotated[str | None, typer.Option(help="Comma-separated block indices or depths such as .5,1.0.")] = None,
    metrics: Annotated[str | None, typer.Option(help="Comma-separated: d1,d2,d3.")] = None,
    corpus: Annotated[str | None, typer.Option(help="planted, real, or a folder of JSONL files.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most this many passages per concept (train and test).")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of folds, nulls, scorers and sampling.")] = None,
    activations: Annotated[str | None, typer.Option(help="Measure imported activations of this name.")] = None,
    keep_activations: Annotated[bool, typer.Option(help="Store the per-token hidden states too.")] = False,
    output: Output = Path("runs"),
    display: Annotated[str | None, typer.Option(help="rich, plain, json or none.")] = None,
    max_failures: Annotated[int | None, typer.Option(help="Stop after more failed tasks than this.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Say what would be done and what it costs, and stop.")] = False,
    gpus: Annotated[int, typer.Option(help="With --dry-run: GPUs of the cluster.")] = 0,
    gpu_type: Annotated[str, typer.Option(help="With --dry-run: a100, b200, h100, h200 or l40s.")] = "h100",
    price_per_gpu_hour: Annotated[float | None, typer.Option(help="With --dry-run: price of one GPU hour.")] = None,
    replicas: Annotated[str | None, typer.Option(help="With --dry-run: such as prober=8,scorer=2.")] = None,
    detach: Annotated[bool, typer.Option(help="Run in the background; follow it with watch.")] = False,
) -> int:
    """Measure pooling strategies; the same command again continues a run."""
    flags: dict[str, Any] = {
        "preset": preset or (None if config else "demo"),
        "suite": suite,
        "protocol": protocol,
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
    from poolbench_driver.cli.dry_run import cluster_of, show_dry_run
    from poolbench_driver.cluster.session import open_session
    from poolbench_driver.job import prepare
    from poolbench_driver.run.progress import open_display

    settings = _settings(config, flags, activations)
    shown = open_display(display)
    job = prepare(settings, open_session())  # wrong names are reported first, because that needs no cluster
    if dry_run:
        return show_dry_run(job, cluster_of(gpus, gpu_type, price_per_gpu_hour, replicas), as_json=display == "json")
    folder = _new_folder(job, output)
    return _detach(folder) if detach else job.run(folder, shown, max_failures)


def _new_folder(job: Job, output: Path) -> RunFolder:
    """Return the folder of a run that is about to start; raise a PoolbenchError if the cluster is unfit."""
    from poolbench_driver.cluster.fitness import check_session
    from poolbench_driver.rundir import RunFolder

    for note in check_session(job.session):
        typer.echo(note, err=True)
    return RunFolder.create(output, job.config)


def report(name: RunName = "latest", output: Output = Path("runs")) -> None:
    """Write the report of a run again from its tables."""
    from poolbench_driver.records import find_run
    from poolbench_driver.report import write_report

    typer.echo(str(write_report(find_run(output, name))))


def leaderboard(name: RunName = "latest", output: Output = Path("runs")) -> None:
    """Print the leaderboard and the concept-by-strategy tables of a run as Markdown."""
    from poolbench_driver.records import find_run
    from poolbench_driver.report.markdown import leaderboard_markdown

    typer.echo(leaderboard_markdown(find_run(output, name)))


COMMANDS = (run, report, leaderboard)


def _names(text: str | None) -> list[str] | None:
    return [part.strip() for part in text.split(",") if part.strip()] if text else None


def _settings(config: Path | None, flags: dict[str, Any], activations: str | None) -> RunConfig:
    """Return the file's settings, overridden by an import's, overridden by the flags that were given."""
    from poolbench.config import load_run_config
    from poolbench_driver.suites import SETTINGS

    given = {name: value for name, value in flags.items() if value is not None}
    overrides = {**_import_settings(activations, given), **given} if activations else given
    return load_run_config(config, overrides, SETTINGS)


def _import_settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that measure all of an import; flags may still narrow them."""
    from poolbench_driver.cluster.session import open_session
    from poolbench_driver.imports.record import load_import

    if "model" in given:
        raise typer.BadParameter("--activations and --model name two models; give one")
    return load_import(open_session().artifacts, name).settings()


def _layers(text: str | None) -> list[int | float] | None:
    if text is None:
        return None
    try:
        return [float(part) if "." in part else int(part) for part in _names(text) or []]
    except ValueError:
        raise typer.BadParameter(f"--layers {text}: use block indices such as 2,4 or depths such as .5,1.0") from None


def _detach(folder: RunFolder) -> int:
    """Start this command without --detach in a session of its own, which outlives the terminal."""
    log = folder.file("driver.log")
    arguments = [argument for argument in sys.argv[1:] if argument != "--detach"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "poolbench_driver.cli", *arguments, "--display", "plain"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
    folder.write_state(RunState.STARTING, pid=process.pid)
    follow = f"poolbench-driver watch {folder.id} --output {folder.path.parent}"
    typer.echo(f"{folder.id} runs as process {process.pid}; log in {log}; follow it: {follow}")
    return Exit.DONE
