"""vectors: keep steering vectors with their cards, pass them on to other tools, and take theirs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poolbench.contracts.wire import Exit
from poolbench.errors import InputError
from poolbench_driver.cli.runs import RunsFolder
from poolbench_driver.cli.tables import AsJson, print_data, print_table
from poolbench_driver.waiting import waiting

if TYPE_CHECKING:
    from poolbench_driver.models import ModelInfo
    from poolbench_driver.vectors.card import VectorCard

app = typer.Typer(
    help="Keep steering vectors with their cards; write them for llama.cpp, repeng and others, and read theirs.",
    no_args_is_help=True,
)

_FORMATS = "poolbench, gguf (llama.cpp), repeng, easysteer, neuronpedia, transformerlens, nnsight or transformers"
_COLUMNS = ("name", "model", "layer", "strategy", "construction", "strength", "where")

Named = Annotated[str, typer.Argument(help="Folder of a vector, a file with a card, or a name below vectors/.")]


@app.command()
def ls(
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders to look below; default: vectors.")] = None,
    run: Annotated[str | None, typer.Option(help="Also the directions of this run: its id, or 'latest'.")] = None,
    runs: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> int:
    """List the vectors below folders, and those that a run has made."""
    from poolbench_driver.vectors.listing import FOLDER, cards_below

    rows, unreadable = list[dict[str, Any]](), False
    for folder in folders or ([] if run else [FOLDER]):
        if folders and not folder.is_dir():
            raise InputError(f"{folder} is not a folder")
        for path, card in cards_below(folder):
            if isinstance(card, InputError):
                typer.echo(f"left out: {card}", err=True)
                unreadable = True
            else:
                rows.append(_row_of_card(card, path))
    rows += [] if run is None else _rows_of_run(runs, run)
    if as_json:
        print_data(rows)
    elif rows:
        cells = [{**row, "layer": ",".join(map(str, row["layer"]))} for row in rows]
        print_table(cells, _COLUMNS, whole=1)
    else:
        typer.echo("no vectors; `vectors export --format poolbench` and `vectors import` write some", err=True)
    return Exit.FAILURES if unreadable else Exit.DONE


def _row_of_card(card: VectorCard, path: Path) -> dict[str, Any]:
    return {
        "name": card.name,
        "model": card.model,
        "layer": list(card.layers),
        "strategy": card.strategy,
        "construction": card.construction,
        "strength": card.strength.recommended,
        "where": str(path),
    }


def _rows_of_run(runs: Path, run: str) -> list[dict[str, Any]]:
    from poolbench_driver.records import find_run
    from poolbench_driver.vectors.card import vector_name
    from poolbench_driver.vectors.of_run import directions_of, recommended_strengths

    folder = find_run(runs, run)
    strengths = recommended_strengths(folder)
    return [
        {
            "name": vector_name(row["model"], row["concept"]),
            "model": row["model"],
            "layer": [row["layer"]],
            "strategy": row["strategy"],
            "construction": row["construction"],
            "strength": strengths.get((row["concept"], row["strategy"], row["layer"])),
            "where": f"run {folder.id}",
        }
        for row in directions_of(folder)
    ]


@app.command()
def show(vector: Named, as_json: AsJson = False) -> None:
    """Show the card of a vector: what it is, how to apply it, and what was measured."""
    from poolbench_driver.vectors.card import Vector
    from poolbench_driver.vectors.listing import place_of
    from poolbench_driver.vectors.words import facts_of, measures_of

    card = Vector.load(place_of(vector)).card
    if as_json:
        print_data(content := card.model_dump(mode="json"), content["measures"])
        return
    for name, fact in facts_of(card):
        typer.echo(f"{name + ':':<16} {fact}")
    if card.measures:
        print_table(measures_of(card), ("measure", "value", "95 % interval", "n", "why null"), whole=1)


@app.command("export")
def export_(
    output: Annotated[Path, typer.Option(help="File to write; a folder for poolbench and for scripts.")],
    format_: Annotated[str, typer.Option("--format", help=f"{_FORMATS}.")],
    vector: Annotated[str | None, typer.Argument(help="Folder, file with a card, or name; or give --run.")] = None,
    run: Annotated[str | None, typer.Option(help="Run that made the direction: its id, or 'latest'.")] = None,
    concept: Annotated[str | None, typer.Option(help="Concept of the run's direction.")] = None,
    strategy: Annotated[str | None, typer.Option(help="Its strategy; default: the one that steered best.")] = None,
    layer: Annotated[int | None, typer.Option(help="Block index; default: the best one, or all of VECTOR.")] = None,
    construction: Annotated[str | None, typer.Option(help="Such as C1; default: that of the run's steering.")] = None,
    runs: RunsFolder = Path("runs"),
) -> None:
    """Write a vector for another tool, or as a folder with its card. Those of sensitive concepts are refused."""
    from poolbench_driver.cluster.session import open_artifacts
    from poolbench_driver.records import find_run
    from poolbench_driver.vectors.card import Vector
    from poolbench_driver.vectors.exporting import export_vector
    from poolbench_driver.vectors.listing import place_of
    from poolbench_driver.vectors.of_run import vector_of_run

    if (vector is None) == (run is None):
        raise InputError("give VECTOR or --run, one of them")
    if vector is not None:
        if (concept, strategy, construction) != (None, None, None):
            raise InputError("--concept, --strategy and --construction belong to --run")
        exported = Vector.load(place_of(vector)).at(layer)
    elif concept is None:
        raise InputError("--run needs --concept; `vectors ls --run` lists them")
    else:
        folder = find_run(runs, str(run))
        exported = vector_of_run(folder, open_artifacts(), concept, strategy, layer, construction)
    usage = export_vector(exported, format_, output)
    layers = ", ".join(map(str, exported.vectors))
    typer.echo(f"{output}: {exported.card.name} at layer {layers}, {format_}")
    typer.echo(f"use it: {usage}", err=True)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="GGUF, .npy, .npz, safetensors, .pt, JSON of Neuronpedia, or a folder.")],
    model: Annotated[str, typer.Option(help="The model it is for: preset id, folder or Hugging Face id.")],
    layer: Annotated[int | None, typer.Option(help="Block whose output it is for, if the file names none.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Take the vector of another model of this width.")] = False,
    output: Annotated[Path | None, typer.Option(help="Folder to write; default: one of its name in vectors/.")] = None,
) -> None:
    """Check a vector of another tool against a model and keep it as a folder with a card."""
    from poolbench_driver.vectors.importing import import_vector
    from poolbench_driver.vectors.listing import FOLDER, folder_name

    vector = import_vector(file, _described(model), layer, force=force)
    folder = output or FOLDER / folder_name(vector.card.name)
    vector.save(folder)
    layers = vector.card.layers
    typer.echo(f"{folder}: {vector.card.name}, width {vector.card.width}, layers {', '.join(map(str, layers))}")
    alpha = "1" if vector.card.apply.alpha_unit == "absolute" else ".3"
    how = f"--model {model} --vector {folder} --alpha {alpha}"
    typer.echo(f"try it: poolbench-driver steer PROMPT {how}", err=True)


@app.command()
def serve(
    vector: Annotated[str | None, typer.Argument(help="Folder, file or name below vectors/; none: list names.")] = None,
    name: Annotated[str | None, typer.Option(help="Behind the model's; default: the concept.")] = None,
    strength: Annotated[float | None, typer.Option(help="Of a name without one; default: recommended.")] = None,
    positions: Annotated[
        str | None, typer.Option(help="generated, prompt, or all, also of what is only scored; default: the card's.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model to steer; default: that of the card.")] = None,
    layer: Annotated[int | None, typer.Option(help="Block whose output it is for; default: all of the file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Take the vector of another model of this width.")] = False,
    lower: Annotated[
        bool, typer.Option("--lower", help="Lower a strength above the limit of the card to the limit.")
    ] = False,
    beyond_limit: Annotated[
        bool, typer.Option("--beyond-limit", help="Serve a strength outside the limit of the card.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let OpenAI clients steer by the name of a model, such as demo+contrast@.6; without VECTOR, list such names."""
    from poolbench_driver.cluster.services import open_services
    from poolbench_driver.vectors.card import Vector
    from poolbench_driver.vectors.importing import import_vector
    from poolbench_driver.vectors.listing import place_of
    from poolbench_driver.vectors.serving import Beyond, served_body

    services = open_services()
    if vector is not None:
        path = place_of(vector)
        of_model = Vector.load(path) if model is None else import_vector(path, _described(model), layer, force=force)
        if lower and beyond_limit:
            raise InputError("give --lower or --beyond-limit, one of them")
        beyond: Beyond = "lower" if lower else "serve" if beyond_limit else "refuse"
        body = served_body(of_model.at(layer), name, strength, positions, force=force, beyond=beyond)
        for warning in of_model.card.warnings([body["strength"]]):
            typer.echo(warning, err=True)
        with waiting("waiting for the steerer; a model that is not loaded yet takes a while"):
            rows = [services.post("steerer", "served", body)]
    elif (name, strength, positions, model, layer) != (None,) * 5 or force or lower or beyond_limit:
        raise InputError("options belong to VECTOR, the vector to serve; without one, names are listed")
    else:
        rows = services.get("steerer", "served")["served"]
    if as_json:
        print_data(rows)
    elif rows:
        cells = [{**row, "layers": ",".join(map(str, row["layers"]))} for row in rows]
        print_table(cells, ("id", "model", "name", "strength", "layers"), whole=1)
        address = f"{services.settings.http_address}/steerer/v1"
        typer.echo(f"use them: as the model of any OpenAI client at {address}", err=True)
    else:
        typer.echo("no vector is served; `vectors serve VECTOR` serves one", err=True)


@app.command()
def unserve(name: Annotated[str, typer.Argument(help="Such as demo+contrast; `vectors serve` lists them.")]) -> None:
    """Remove the name of a served vector; the vector itself stays where it is."""
    from poolbench_driver.cluster.services import open_services

    open_services().delete("steerer", "served", {"id": name})
    typer.echo(f"{name} steers no longer", err=True)


@app.command("serve-probe")
def serve_probe(
    concept: Annotated[str, typer.Argument(help="Concept whose probe is served.")],
    strategy: Annotated[str | None, typer.Option(help="Its strategy; default: of the highest AUROC.")] = None,
    layer: Annotated[int | None, typer.Option(help="Block index; default: of the highest AUROC.")] = None,
    run: Annotated[str, typer.Option(help="Run that made it: its id, or 'latest'.")] = "latest",
    runs: RunsFolder = Path("runs"),
) -> None:
    """Serve the probe of a run, so that requests read its log-odds along by the name of the concept."""
    from poolbench_driver.cli.export import opened
    from poolbench_driver.cluster.services import open_services
    from poolbench_driver.vectors.probes import probe_of_run

    export = opened("directions", run, runs, concept, None)
    body = probe_of_run(export.folder, export.plan, export.artifacts, concept, strategy, layer)
    with waiting("waiting for the steerer; a model that is not loaded yet takes a while"):
        open_services().post("steerer", "served/probes", body)
    typer.echo(f"{body['model']}: probe of {concept} by {body['strategy']} at layer {body['layer']}")
    typer.echo(f'use it: "reading": {{"concept": "{concept}", "strategy": "{body["strategy"]}", "probe": true}}')


def _described(model: str) -> ModelInfo:
    """Return a model: of this machine without any service, of a hub as the extractor knows it."""
    from poolbench.config import resolve_model
    from poolbench_driver.cluster.services import open_services
    from poolbench_driver.models import describe, obtain

    obtain(model)
    ref = resolve_model(model)
    return describe(ref, None if ref.is_local else open_services())
