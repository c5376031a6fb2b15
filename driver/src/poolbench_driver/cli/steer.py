"""`steer`: prompts continued under steering vectors, shown during generation, with their receipts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console

from poolbench.errors import InputError, unknown_name_message
from poolbench_driver.cli.runs import RunsFolder
from poolbench_driver.cli.tables import print_data, table_of
from poolbench_driver.queries.texts import read_texts
from poolbench_driver.waiting import waiting

if TYPE_CHECKING:
    from poolbench_driver.api.steering import Piece, SteeredTexts

OPERATIONS = ("add", "add_preserving_norm", "clamp", "erase")
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
    output: RunsFolder = Path("runs"),
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
    alpha: Annotated[
        float | None, typer.Option(help="Coefficient of --vector; default: the strength of its card, or 1.")
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(help="Of coefficients: absolute (default), or residual_norm; of --vector that of its card."),
    ] = None,
    read: Annotated[
        str | None, typer.Option(help="Read this concept's direction along: a score for each token of a text.")
    ] = None,
    positions: Annotated[
        str | None,
        typer.Option(help="generated, all, prompt, or the first position; default: those of the card, or generated."),
    ] = None,
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
    from poolbench_driver.api.cluster import Cluster
    from poolbench_driver.api.steering import LOADING

    texts = [*(prompts or []), *(line.text for line in (read_texts(input_) if input_ is not None else []))]
    if not texts:
        raise InputError("nothing to continue: give prompts, or --input FILE")
    is_named = concept is not None or sae is not None
    if is_named and (edit or vector is not None or (alpha, unit) != (None, None)):
        others = "--edit, --vector, --alpha and --unit are for vectors of yours"
        raise InputError(f"--concept takes --strength, and so does --sae; {others}")
    if strength is not None and not is_named:
        raise InputError("--strength belongs to --concept or --sae; --alpha is that of --vector")
    if alpha is not None and vector is None:
        raise InputError("--alpha belongs to --vector; an --edit has its own")
    strengths = alpha if strength is None else _strengths(strength)
    streams = not as_json and not isinstance(strengths, list)
    result = Cluster().steer(
        texts, concept=concept, strategy=strategy, layer=layer, run=run, strength=strengths, vector=vector,
        unit=None if vector is None else unit, edits=[parse_edit(spec, unit or "absolute") for spec in edit or []],
        sae=sae, subject=subject, features=None if features is None else _numbers(features), read=read,
        positions=int(positions) if positions and positions.isdecimal() else positions, model=model,
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed, stop=stop, stream=streams,
        output=output,
    )  # fmt: skip
    for note in result.notes:
        typer.echo(note, err=True)
    if as_json:
        print_data(result.to_dict())
    elif streams:
        pieces = iter(result)
        with waiting(LOADING):
            first = list(islice(pieces, 1))
        show(texts, chain(first, pieces), sys.stdout, Console(stderr=True))
    else:
        _compare(result)


def _strengths(listed: str) -> float | list[float]:
    """Return a strength, or the strengths of a list with commas."""
    try:
        return [float(part) for part in listed.split(",")] if "," in listed else float(listed)
    except ValueError:
        raise InputError(f"--strength {listed!r}: give a number, or several with commas") from None


def _numbers(listed: str) -> list[int]:
    """Return the numbers of a list with commas."""
    parts = [part.strip() for part in listed.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"--features {listed!r}: give numbers with commas, each once")
    return [int(part) for part in parts]


def _compare(result: SteeredTexts) -> None:
    """Show the texts of each prompt at all strengths, the unsteered one first."""
    rows, console = result.to_pylist(), Console()
    for start in range(0, len(rows), len(result.strengths)):
        cells = [
            {"strength": f"{row['strength']:g}" if row["strength"] else "unsteered", "text": row["text"].strip()}
            | ({"mean score": f"{fmean(row['reading']['scores']):.2f}"} if "reading" in row else {})
            for row in rows[start : start + len(result.strengths)]
        ]
        console.print(table_of(cells, tuple(cells[0]), title=rows[start]["prompt"]))


def parse_edit(spec: str, unit: str) -> dict[str, Any]:
    """Return an edit as the steerer takes it; raise InputError for a malformed text or file."""
    from poolbench_driver.vectors.importing import read_for_model
    from poolbench_driver.vectors.units import field_of

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
    of = "alpha" if operation == "erase" else field_of(unit)  # a share of the projection has no unit
    edit = {"layer": layer, of: strength, "operation": operation}
    if _is_id(source):
        return {"vector_id": source, **edit}
    return {"vector": read_for_model(Path(source), None, layer)[layer].tolist(), **edit}


def show(texts: Sequence[str], pieces: Iterable[Piece], output: TextIO, notes: Console) -> None:
    """Write texts in the order of their prompts while they grow, each followed by its receipt."""
    written, waiting = 0, [""] * len(texts)
    ends: dict[int, Piece] = {}
    scores: list[list[float]] = [[] for _ in texts]
    output.write(texts[0])
    for piece in pieces:
        waiting[piece.prompt] += piece.text
        scores[piece.prompt] += (piece.reading or {}).get("scores", [])
        if piece.finish_reason is not None:
            ends[piece.prompt] = piece
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
                notes.print(_scores(ends[written].reading or {}, scores[written]), style="dim", highlight=False)
            written += 1
            if written < len(texts):
                output.write(texts[written])


def _proof(piece: Piece) -> str:
    receipt = piece.receipt
    if receipt is None:
        return f"unsteered, ended by {piece.finish_reason}"
    edits = zip(receipt["vector_ids"], receipt["layers"], receipt["alphas"], strict=True)
    listed = ", ".join(f"{key[:8]} at {layer} by {alpha:g}" for key, layer, alpha in edits)
    counted = f"{receipt['positions_changed']} of {receipt['positions_expected']} positions changed"
    return f"{counted} ({listed}), ended by {piece.finish_reason}"


def _scores(reading: dict[str, Any], scores: list[float]) -> str:
    """Return the scores of a text's tokens, and what they are of."""
    direction = reading["direction"]
    listed = " ".join(f"{score:.2f}" for score in scores)
    return f"{direction['concept']} by {direction['strategy']} at layer {reading['layer']}, by token: {listed}"


def _is_id(source: str) -> bool:
    return len(source) == 32 and set(source) <= set("0123456789abcdef") and not Path(source).exists()
