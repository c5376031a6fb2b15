"""export: what may be published of a run; suites add what they write of theirs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from poolbench.contracts.wire import Exit
from poolbench_driver.cli.runs import RunName, RunsFolder

if TYPE_CHECKING:
    from poolbench.storage import Artifacts
    from poolbench_driver.records import Run

T = TypeVar("T")
app = typer.Typer(
    help="Write what others may have of a run: never passages, vectors, texts or scorers of sensitive concepts.",
    no_args_is_help=True,
)

Output = Annotated[Path, typer.Option(help="Folder to write; an earlier export of the same run there is replaced.")]
Licence = Annotated[str | None, typer.Option(help="Identifier; default: that of a known model, else unknown.")]


@app.command("run")
def run_(output: Output, run: RunName = "latest", runs: RunsFolder = Path("runs"), licence: Licence = None) -> int:
    """Write a whole run: tables, configuration, manifest, report, and the versions that it was made with."""
    from poolbench_driver.release import export_run

    artifacts, folder, keys = in_store(run, runs)
    command = command_line("run", folder.id, licence=licence)
    write = partial(export_run, folder, artifacts, keys, output, licence=licence or "unknown", command=command)
    manifest = with_progress(write, output, len(keys))
    return show_written(
        manifest, f"{output}: run {folder.id}, {len(manifest['files'])} files, licence {manifest['licence']}"
    )


def in_store(run: str, runs: Path) -> tuple[Artifacts, Run, frozenset[str]]:
    """Return the object store, a run of it by its name, and the keys of the artifacts that the run needs."""
    from poolbench_driver.cluster.session import open_artifacts
    from poolbench_driver.records import RunRecords, find_run, recall_concepts

    artifacts, folder = open_artifacts(), find_run(runs, run)
    recall_concepts(folder)
    return artifacts, folder, RunRecords(artifacts.store).keys(folder.id)


def command_line(what: str, run: str, *, concepts: list[str] | None = None, licence: str | None = None) -> str:
    """Return the command that makes an export, for its card."""
    words = ["poolbench-driver", "export", what, run, "--output", "FOLDER"]
    words += ["--concepts", ",".join(concepts)] if concepts else []
    words += ["--licence", licence] if licence else []
    return shlex.join(words)


def with_progress(write: Callable[..., T], output: Path, parts: int) -> T:
    """Call `write` below a progress bar and return what it returns; after an interrupt, say that nothing changed."""
    try:
        with typer.progressbar(length=parts, label="exporting", file=sys.stderr) as bar:
            return write(on_part=bar.update)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; {output} is as it was", err=True)
        raise SystemExit(Exit.INTERRUPTED) from None


def show_written(manifest: dict[str, Any], line: str) -> int:
    """Print what was written, and the parts that the run lacks; return the exit code."""
    typer.echo(line)
    for gap in manifest["missing"]:
        where = ", ".join(str(value) for name, value in gap.items() if name != "reason")
        typer.echo(f"missing: {where}: {gap['reason']}", err=True)
    return Exit.FAILURES if manifest["missing"] else Exit.DONE
