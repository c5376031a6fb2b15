"""export: what is written of the concepts of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poolbench_driver.cli.export import Licence, Output, command_line, show_written, with_progress
from poolbench_driver.cli.runs import RunName, RunsFolder

if TYPE_CHECKING:
    from poolbench_driver.suites.poolbench.release.source import Export

app = typer.Typer()
#: What this suite adds to `vectors`.
vectors = typer.Typer()

Concepts = Annotated[
    str | None, typer.Option(help="Comma-separated concept ids; default: all measured ones that may go out.")
]

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


def of_concepts(what: str) -> Callable[..., int]:
    """Return the command that exports something of each concept of a run."""
    _, num_parts, counted = _OF_CONCEPTS[what]

    def command(
        output: Output,
        run: RunName = "latest",
        runs: RunsFolder = Path("runs"),
        concepts: Concepts = None,
        licence: Licence = None,
    ) -> int:
        from poolbench_driver.suites.poolbench.release.activations import export_activations
        from poolbench_driver.suites.poolbench.release.directions import export_directions
        from poolbench_driver.suites.poolbench.release.scorers import export_scorers
        from poolbench_driver.suites.poolbench.release.steered import export_steered_outputs

        writers = (export_activations, export_directions, export_scorers, export_steered_outputs)
        write = dict(zip(_OF_CONCEPTS, writers, strict=True))[what]
        export = _export(what, run, runs, concepts, licence)
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
    app.command(_name, help=_help)(of_concepts(_name))


@vectors.command("serve-probe")
def serve_probe(
    concept: Annotated[str, typer.Argument(help="Concept whose probe is served.")],
    strategy: Annotated[str | None, typer.Option(help="Its strategy; default: of the highest AUROC.")] = None,
    layer: Annotated[int | None, typer.Option(help="Block index; default: of the highest AUROC.")] = None,
    run: Annotated[str, typer.Option(help="Run that made it: its id, or 'latest'.")] = "latest",
    runs: RunsFolder = Path("runs"),
) -> None:
    """Serve the probe of a run, so that requests read its log-odds along by the name of the concept."""
    from poolbench_driver.cluster.services import open_services
    from poolbench_driver.suites.poolbench.release.probes import probe_of_run
    from poolbench_driver.waiting import waiting

    body = probe_of_run(_export("directions", run, runs, concept, None), concept, strategy, layer)
    with waiting("waiting for the steerer; a model that is not loaded yet takes a while"):
        open_services().post("steerer", "served/probes", body)
    typer.echo(f"{body['model']}: probe of {concept} by {body['strategy']} at layer {body['layer']}")
    typer.echo(f'use it: "reading": {{"concept": "{concept}", "strategy": "{body["strategy"]}", "probe": true}}')


def _export(what: str, run: str, runs: Path, concepts: str | None, licence: str | None) -> Export:
    """Return the run that is exported, planned again; say which of its concepts stay, because they are sensitive."""
    from poolbench_driver.cluster.session import open_session
    from poolbench_driver.config import of_concepts
    from poolbench_driver.job import prepare
    from poolbench_driver.records import find_run, recall_concepts
    from poolbench_driver.suites.poolbench.plan import PoolBenchPlan
    from poolbench_driver.suites.poolbench.release.source import Export, licence_of, releasable_concepts

    session, folder = open_session(), find_run(runs, run)
    recall_concepts(folder)
    config = of_concepts(folder.config)
    names = [name.strip() for name in concepts.split(",") if name.strip()] if concepts else None
    releasable = releasable_concepts(config.concepts, names)
    if names is None and (withheld := [name for name in config.concepts if name not in releasable]):
        typer.echo(f"left out, because they are sensitive: {', '.join(withheld)}")
    plan = prepare(config, session, folder.model).plan
    assert isinstance(plan, PoolBenchPlan)
    return Export(
        folder,
        plan,
        session.artifacts,
        releasable,
        licence or licence_of(what, config),
        command_line(what, folder.id, concepts=names, licence=licence),
    )
