"""`steer`: prompts continued under steering vectors, shown during generation, with their receipts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console

from poolbench.errors import InputError, unknown_name_message
from poolbench_driver.adhoc.texts import read_texts
from poolbench_driver.cli.tables import print_data, table_of
from poolbench_driver.waiting import waiting

if TYPE_CHECKING:
    from poolbench_driver.cluster.services import Services

OPERATIONS = ("add", "add_preserving_norm", "clamp", "erase")
UNITS = {"absolute": "alpha", "residual_norm": "strength"}
_LOADING = "waiting for the steerer; a model that is not loaded yet takes a while"
_EDIT = "FILE:LAYER:STRENGTH[:OPERATION]"


def steer(
    prompts: Annotated[list[str] | None, typer.Argument(help="Texts to continue.")] = None,
    input_: Annotated[
        Path | None, typer.Option("--input", help="More of them: a table with 'text', or plain .txt, one a line.")
    ] = None,
    concept: Annotated[
        str | None, typer.Option(help="Steer by the direction of this concept from the latest run of the model.")
    ] = None,
    strategy: Annotated[str | None, typer.Option(help="Its strategy; default: the one that steered best.")] = None,
    strength: Annotated[
        str | None, typer.Option(help="In residual norms of the layer; with several (.1,.2) a table of all texts.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="Id of the run that made the direction.")] = None,
    sae: Annotated[
        str | None, typer.Option(help="Steer by features of this autoencoder: of --subject, or --features.")
    ] = None,
    subject: Annotated[
        str | None, typer.Option(help="Those that differ most between its high and low stories in the latest run.")
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="Numbers of features with commas; their decoder rows are added.")
    ] = None,
    edit: Annotated[
        list[str] | None,
        typer.Option(metavar="<str>", help=f"{_EDIT}, several times; a registered vector's id may stand for the file."),
    ] = None,
    vector: Annotated[
        Path | None, typer.Option(help="A single edit instead: .npy, GGUF and what else `vectors import` reads.")
    ] = None,
    layer: Annotated[
        int | None, typer.Option(help="Block index of the concept's direction, or of a --vector that names none.")
    ] = None,
    alpha: Annotated[float, typer.Option(help="Coefficient of --vector.")] = 1.0,
    unit: Annotated[str, typer.Option(help="Of strengths: absolute, or residual_norm of the layer.")] = "absolute",
    read: Annotated[
        str | None, typer.Option(help="Read this concept's direction along: a score for each token of a text.")
    ] = None,
    positions: Annotated[str, typer.Option(help="generated, all, prompt, or the first position.")] = "generated",
    model: Annotated[str, typer.Option(help="Preset id, folder or Hugging Face id.")] = "demo",
    max_tokens: Annotated[int, typer.Option(help="Most new tokens of a text.")] = 40,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[
        float, typer.Option(help="Draw from the likeliest tokens that have this probability together.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Of sampled texts.")] = 0,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="<str>", help="End a text at this string, several times.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Texts and receipts as JSON, at the end.")] = False,
) -> None:
    """Continue prompts under steering vectors, with a receipt for every text."""
    from poolbench.model_folders.folders import list_folder
    from poolbench_driver.cluster.services import open_services
    from poolbench_driver.models import obtain

    texts = [*(prompts or []), *(line.text for line in (read_texts(input_) if input_ is not None else []))]
    if not texts:
        raise InputError("nothing to continue: give prompts, or --input FILE")
    if sae is None and (subject, features) != (None, None):
        raise InputError("--subject and --features need --sae, the autoencoder whose features they mean")
    if sae is not None and (concept, strategy) != (None, None):
        raise InputError("--sae and --concept are two directions: give one of them; --strategy belongs to --concept")
    is_named = concept is not None or sae is not None
    if is_named and (edit or vector is not None or (alpha, unit) != (1.0, "absolute")):
        others = "--edit, --vector, --alpha and --unit are for vectors of yours"
        raise InputError(f"--concept takes --strength, and so does --sae; {others}")
    if not is_named and (strategy, strength, run) != (None, None, None):
        raise InputError("--strategy, --strength and --run belong to --concept, the last two also to --sae")
    body: dict[str, Any] = {"prompt": texts, "model": list_folder(model), "max_tokens": max_tokens}
    body |= {"temperature": temperature, "top_p": top_p, "seed": seed, "stop": stop or None}
    body |= {} if read is None else {"reading": {"concept": read}}
    first = int(positions) if positions.isdecimal() else positions
    if is_named:
        strengths = _strengths(strength)
        if sae is None:
            names = {"concept": concept, "strategy": strategy, "layer": layer, "run": run}
            steering, facts = _named(body["model"], names)
        else:
            steering, facts = _of_features(body["model"], sae, subject, features, layer, run)
        _show_by_strength(texts, body, strengths, first, steering, facts, as_json=as_json)
        return
    edits = [*(parse_edit(spec, unit) for spec in edit or []), *edits_of_file(vector, layer, alpha, unit, model=model)]
    body |= {"steering": {"edits": edits, "positions": first}} if edits else {}
    services = open_services()
    obtain(model)
    if as_json:
        with waiting(_LOADING):
            answer = services.post("steerer", "v1/completions", body)
        print_data(answer_rows(texts, answer))
    else:
        _stream(services, texts, body)


def _named(model: str, names: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return how to steer by the direction that `names` mean, and what identifies it to a reader."""
    from poolbench.config import MODEL_PRESETS, ModelRef, resolve_model
    from poolbench.storage.directions import NamedDirections
    from poolbench_driver.cluster.services import open_services
    from poolbench_driver.cluster.session import open_artifacts
    from poolbench_driver.models import obtain

    services = open_services()
    obtain(model)
    # The services of a remote cluster read a model as it is named.
    remote = MODEL_PRESETS.get(model) or ModelRef(model, model)
    ref = resolve_model(model) if services.settings.store_uri else remote
    direction = NamedDirections(open_artifacts(services.settings)).find(ref, **names)
    typer.echo(f"model {direction.model}, direction: {direction}", err=True)
    return {name: getattr(direction, name) for name in names}, direction.facts()


def _of_features(
    model: str, sae: str, subject: str | None, features: str | None, layer: int | None, run: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return how to steer by features of an autoencoder, and what identifies the direction to a reader.

    The direction is the sum of their decoder rows, of unit norm: for a subject weighed by the difference of their means
    between its high and low stories (C5, on these stories), else each once.
    """
    import numpy as np

    from poolbench.directions.registry import unit_direction
    from poolbench.directions.sae import SparseAutoencoder
    from poolbench_driver.imports.saes import places_of
    from poolbench_driver.records.features import weights_of_subject

    if (subject is None) == (features is None):
        raise InputError("--sae takes --subject NAME or --features NUMBERS, one of them")
    if features is not None and run is not None:
        raise InputError("--run belongs to --concept and --subject; --features reads no run")
    places = places_of((sae,), "--sae")
    if len(places) > 1:
        raise InputError(f"--sae {sae}: several autoencoders; name one of {', '.join(places)}")
    ((name, path),) = places.items()
    autoencoder, _ = SparseAutoencoder.from_folder(path)
    at = autoencoder.layer if layer is None else layer
    if at is None:
        raise InputError(f"{path}: its configuration names no layer; give --layer")
    if subject is None:
        made_by, weights = None, dict.fromkeys(_numbers(features or "", autoencoder.num_features), 1.0)
    else:
        made_by, weights = weights_of_subject(Path("runs"), run, name, autoencoder.id, model, subject)
    numbers, sizes = np.array(list(weights)), np.array(list(weights.values()))
    direction = unit_direction("C5", autoencoder.direction_of(numbers, sizes))
    of_subject = "" if subject is None else f" that answer to {subject}, of run {made_by}"
    listed = ", ".join(map(str, weights))
    typer.echo(f"model {model}, direction: features {listed} of {name} at layer {at}{of_subject}", err=True)
    facts = {"autoencoder": name, "subject": subject, "run": made_by, "layer": at, "features": weights}
    return {"vector": direction.vector.tolist(), "layer": at}, facts


def _numbers(listed: str, num_features: int) -> list[int]:
    """Return the numbers of a list with commas. Raise InputError for anything else than features, each once."""
    parts = [part.strip() for part in listed.split(",")]
    numbers = [int(part) for part in parts if part.isdecimal()]
    if len(numbers) < len(parts) or len(set(numbers)) < len(numbers) or max(numbers) >= num_features:
        raise InputError(f"--features {listed!r}: give numbers from 0 to {num_features - 1} with commas, each once")
    return numbers


def _show_by_strength(
    texts: list[str],
    body: dict[str, Any],
    strengths: Sequence[float],
    positions: str | int,
    steering: dict[str, Any],
    facts: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    """Steer along a direction; show several strengths, or JSON, with the unsteered texts."""
    from poolbench_driver.cluster.services import open_services
    from poolbench_driver.models import obtain

    services = open_services()
    obtain(body["model"])
    limit = facts.get("fluent_strength")
    beyond = [] if limit is None else [f"{strength:g}" for strength in strengths if abs(strength) > limit]
    if beyond:
        at_most = f"up to {limit:g}" if limit else "at none of its strengths"
        typer.echo(f"warning: strength {', '.join(beyond)}: the run's texts were fluent {at_most}", err=True)
    bodies = [body | {"steering": steering | {"strength": strength, "positions": positions}} for strength in strengths]
    if len(strengths) == 1 and not as_json:
        _stream(services, texts, bodies[0])
    else:
        _compare(services, texts, facts, [0.0, *strengths], [body, *bodies], as_json=as_json)


def _strengths(listed: str | None) -> list[float]:
    """Return the strengths of a list with commas, without 0: the unsteered text is shown anyway."""
    if listed is None:
        raise InputError(
            "--concept needs --strength, in residual norms of the layer, and so does --sae: --strength .2, or .1,.2,.4"
        )
    try:
        strengths = [value for part in listed.split(",") if (value := float(part))]
    except ValueError:
        strengths = []
    if not strengths or not all(map(isfinite, strengths)):
        raise InputError(f"--strength {listed!r}: give a number other than 0, or several with commas")
    return strengths


def _compare(
    services: Services,
    texts: list[str],
    direction: dict[str, Any],
    strengths: Sequence[float],
    bodies: Sequence[dict[str, Any]],
    *,
    as_json: bool,
) -> None:
    """Show the texts of each prompt at all strengths, the unsteered one first."""
    with waiting(f"{len(texts) * len(bodies)} texts: {_LOADING}"), ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(lambda body: services.post("steerer", "v1/completions", body), bodies))
    replies = [answer_rows(texts, answer) for answer in answers]
    rows = [
        {"strength": strength, **reply["texts"][prompt]}
        for prompt in range(len(texts))
        for strength, reply in zip(strengths, replies, strict=True)
    ]
    if as_json:
        facts = {
            "model": replies[0]["model"],
            "seed": replies[0]["seed"],
            "direction": direction,
            "texts": rows,
        }
        print_data(facts)
        return
    console = Console()
    for start in range(0, len(rows), len(strengths)):
        cells = [
            {"strength": f"{row['strength']:g}" if row["strength"] else "unsteered", "text": row["text"].strip()}
            | ({"mean score": f"{fmean(row['reading']['scores']):.2f}"} if "reading" in row else {})
            for row in rows[start : start + len(strengths)]
        ]
        console.print(table_of(cells, tuple(cells[0]), title=rows[start]["prompt"]))


def edits_of_file(
    file: Path | None, layer: int | None, strength: float, unit: str, *, model: str
) -> list[dict[str, Any]]:
    """Return an edit for each layer of a file of vectors, or for one layer; none without a file.

    Raises:
        InputError: The file cannot be read, names no layer, or is for another model.
    """
    from poolbench_driver.vectors.importing import read_for_model

    vectors = {} if file is None else read_for_model(file, model, layer)
    return [
        {"vector": numbers.tolist(), "layer": number, _unit(unit): strength, "operation": "add"}
        for number, numbers in vectors.items()
    ]


def _stream(services: Services, texts: list[str], body: dict[str, Any]) -> None:
    """Show texts while they are generated."""
    events = services.stream("steerer", "v1/completions", body | {"stream": True})
    with waiting(_LOADING):
        first = list(islice(events, 1))
    show(texts, chain(first, events), sys.stdout, Console(stderr=True))


def parse_edit(spec: str, unit: str) -> dict[str, Any]:
    """Return an edit as the steerer takes it; raise InputError for a malformed text or file."""
    from poolbench_driver.vectors.importing import read_for_model

    parts = spec.rsplit(":", 3)
    operation = parts.pop() if parts[-1] in OPERATIONS else "add"
    if operation != "add" or len(parts) == 4:
        parts = ":".join(parts).rsplit(":", 2)
    try:
        source, layer, strength = parts[0], int(parts[1]), float(parts[2])
    except (IndexError, ValueError):
        last = spec.rpartition(":")[2]
        hint = f"; {unknown_name_message('operation', last, OPERATIONS)}" if last.isidentifier() else ""
        raise InputError(f"--edit {spec!r} is not {_EDIT}{hint}") from None
    of = "alpha" if operation == "erase" else _unit(unit)  # a share of the projection has no unit
    edit = {"layer": layer, of: strength, "operation": operation}
    if _is_id(source):
        return {"vector_id": source, **edit}
    return {"vector": read_for_model(Path(source), None, layer)[layer].tolist(), **edit}


def answer_rows(texts: list[str], answer: dict[str, Any]) -> dict[str, Any]:
    """Return prompts, texts and receipts of a completion."""
    rows = [
        {
            "prompt": texts[choice["index"]],
            "text": choice["text"],
            "finish_reason": choice["finish_reason"],
            "receipt": choice["steering_receipt"],
            **({"reading": choice["reading"]} if "reading" in choice else {}),
        }
        for choice in answer["choices"]
    ]
    return {"model": answer["model"], "seed": answer["seed"], "usage": answer["usage"], "texts": rows}


def show(texts: list[str], events: Iterable[dict[str, Any]], output: TextIO, notes: Console) -> None:
    """Write texts in the order of their prompts while they grow, each followed by its receipt."""
    written, waiting, ends = 0, [""] * len(texts), dict[int, dict[str, Any]]()
    scores: list[list[float]] = [[] for _ in texts]
    output.write(texts[0])
    for event in events:
        for choice in event["choices"]:
            index = choice["index"]
            waiting[index] += choice["text"]
            scores[index] += choice.get("reading", {}).get("scores", [])
            if choice["finish_reason"] is not None:
                ends[index] = choice
        while written < len(texts):
            output.write(waiting[written])
            waiting[written] = ""
            output.flush()
            if written not in ends:
                break
            output.write("\n")
            output.flush()
            notes.print(_proof(ends[written]), style="dim", highlight=False)
            if scores[written]:
                notes.print(_scores(ends[written]["reading"], scores[written]), style="dim", highlight=False)
            written += 1
            if written < len(texts):
                output.write(texts[written])


def _proof(choice: dict[str, Any]) -> str:
    receipt = choice["steering_receipt"]
    if receipt is None:
        return f"unsteered, ended by {choice['finish_reason']}"
    edits = zip(receipt["vector_ids"], receipt["layers"], receipt["alphas"], strict=True)
    listed = ", ".join(f"{key[:8]} at {layer} by {alpha:g}" for key, layer, alpha in edits)
    counted = f"{receipt['positions_changed']} of {receipt['positions_expected']} positions changed"
    return f"{counted} ({listed}), ended by {choice['finish_reason']}"


def _scores(reading: dict[str, Any], scores: list[float]) -> str:
    """Return the scores of a text's tokens, and what they are of."""
    direction = reading["direction"]
    listed = " ".join(f"{score:.2f}" for score in scores)
    return f"{direction['concept']} by {direction['strategy']} at layer {reading['layer']}, by token: {listed}"


def _unit(unit: str) -> str:
    if unit not in UNITS:
        raise InputError(unknown_name_message("unit", unit, UNITS))
    return UNITS[unit]


def _is_id(source: str) -> bool:
    return len(source) == 32 and set(source) <= set("0123456789abcdef") and not Path(source).exists()
