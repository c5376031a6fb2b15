"""export: what may be published of a run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from poolbench.contracts.wire import Exit
from poolbench_driver.cli.run import names_of
from poolbench_driver.cli.runs import RunName, RunsFolder

if TYPE_CHECKING:
    from poolbench.storage import Artifacts
    from poolbench_driver.records import Run
    from poolbench_driver.release.source import Export

T = TypeVar("T")
app = typer.Typer(
    help="Write what others may have of a run: never passages, vectors, texts or scorers of sensitive concepts.",
    no_args_is_help=True,
)

Output = Annotated[Path, typer.Option(help="Folder to write; an earlier export of the same run there is replaced.")]
Licence = Annotated[str | None, typer.Option(help="Identifier; default: that of a known model, else unknown.")]
Concepts = Annotated[
    str | None, typer.Option(help="Comma-separated concept ids; default: all measured ones that may go out.")
]


@app.command("run")
def run_(output: Output, run: RunName = "latest", runs: RunsFolder = Path("runs"), licence: Licence = None) -> int:
    """Write a whole run: tables, configuration, manifest, report, and the versions that it was made with."""
    from poolbench_driver.release.run import export_run

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
    from poolbench_driver.records import find_run, recall_concepts
    from poolbench_driver.records.record import RunRecords

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


#: The exports of concepts: what each writes, how many parts that has, and how its manifest counts them.
_OF_CONCEPTS: dict[str, tuple[str, Callable[[Export], int], Callable[[dict[str, Any]], str]]] = {
    "activations": (
        "Write kept states per token, as object arrays per layer in the published layout, with their passages.",
        lambda export: 2 * len(export.concepts) * len(export.scope.layers_with_steering),
        lambda manifest: f"states of {_sum(manifest, 'num_passages')} passages and layers, ",
    ),
    "directions": (
        "Write the directions of concepts as .npy files in the published layout and as safetensors.",
        lambda export: len(export.concepts) * len(export.scope.layers_with_steering),
        lambda manifest: f"{manifest['num_directions']} directions, ",
    ),
    "scorers": (
        "Write the scorers of concepts as folders that Transformers loads as sequence classifiers.",
        lambda export: len(export.concepts),
        lambda manifest: "scorers, ",
    ),
    "steered-outputs": (
        "Write steered texts with settings, scores and receipts as a dataset; sensitive concepts are refused.",
        lambda export: (
            len(export.concepts) * (len(export.scope.strategies) * len(export.scope.config.steering.directions) + 2)
        ),
        lambda manifest: f"{_sum(manifest, 'num_rows')} texts of ",
    ),
}


def concept_export(what: str) -> Callable[..., int]:
    """Return the command that exports something of each concept of a run."""
    _, num_parts, counted = _OF_CONCEPTS[what]

    def command(
        output: Output,
        run: RunName = "latest",
        runs: RunsFolder = Path("runs"),
        concepts: Concepts = None,
        licence: Licence = None,
    ) -> int:
        from poolbench_driver.release.activations import export_activations
        from poolbench_driver.release.directions import export_directions
        from poolbench_driver.release.scorers import export_scorers
        from poolbench_driver.release.steered_outputs import export_steered_outputs

        writers = (export_activations, export_directions, export_scorers, export_steered_outputs)
        write = dict(zip(_OF_CONCEPTS, writers, strict=True))[what]
        export = opened(what, run, runs, concepts, licence)
        manifest = with_progress(
            lambda on_part: write(replace(export, on_part=on_part), output), output, num_parts(export)
        )
        return show_written(
            manifest, f"{output}: {counted(manifest)}{len(export.concepts)} concepts, licence {export.licence}"
        )

    return command


def _sum(manifest: dict[str, Any], count: str) -> int:
    return sum(entry.get(count, 0) for entry in manifest["files"].values())


for _name, (_help, *_) in _OF_CONCEPTS.items():
    app.command(_name, help=_help)(concept_export(_name))


def opened(what: str, run: str, runs: Path, concepts: str | None, licence: str | None) -> Export:
    """Return the run that is exported, planned again; say which of its concepts stay, because they are sensitive."""
    from poolbench_driver.cluster.session import open_session
    from poolbench_driver.config import of_concepts
    from poolbench_driver.job import prepare
    from poolbench_driver.records import find_run, recall_concepts
    from poolbench_driver.release.source import Export, licence_of, releasable_concepts
    from poolbench_driver.stages.plan import ConceptsPlan

    session, folder = open_session(), find_run(runs, run)
    recall_concepts(folder)
    config = of_concepts(folder.config)
    names = names_of(concepts)
    releasable = releasable_concepts(config.concepts, names)
    if names is None and (withheld := [name for name in config.concepts if name not in releasable]):
        typer.echo(f"left out, because they are sensitive: {', '.join(withheld)}")
    plan = prepare(config, session, folder.model).plan
    assert isinstance(plan, ConceptsPlan)
    return Export(
        folder,
        plan,
        session.artifacts,
        releasable,
        licence or licence_of(what, config),
        command_line(what, folder.id, concepts=names, licence=licence),
    )
