"""Requests to one service: `embed`, `explain`, `probe`, `direction` and `score`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poolbench.contracts.wire import Exit
from poolbench.errors import ConfigError, InputError
from poolbench.statuses import Status
from poolbench_driver.adhoc.texts import TextLine, read_lines, read_texts
from poolbench_driver.cli.tables import print_data, print_table

if TYPE_CHECKING:
    import pyarrow as pa

    from poolbench.pooling.registry import StrategySpec
    from poolbench_driver.adhoc.embedding import Reference
    from poolbench_driver.cluster.services import Services

SIDES = ("left", "right")
SINKS = ("exclude", "include")

Texts = Annotated[
    Path,
    typer.Option("--input", help="A table (CSV, JSONL, ...) with 'text' and perhaps 'id', or .txt, one a line."),
]


def embed(
    input_: Texts,
    output: Annotated[Path, typer.Option(help="Where the vectors go: .npy, .parquet or .safetensors.")],
    model: Annotated[str, typer.Option(help="Preset id, folder or Hugging Face id.")] = "demo",
    strategy: Annotated[str, typer.Option(help="Id of a pooling strategy: see `ls strategies`.")] = "A1_mean",
    layer: Annotated[int, typer.Option(help="Block index; negative ones count from the end.")] = -1,
    params: Annotated[str | None, typer.Option(help="Of the strategy: k=4, or a JSON object.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, max=4096, help="Texts of a forward pass at most.")] = None,
    padding_side: Annotated[str, typer.Option(help="left or right; changes speed, never results.")] = "right",
    sinks: Annotated[str, typer.Option(help="Attention sinks: exclude, or include.")] = "exclude",
    idf_texts: Annotated[
        Path | None, typer.Option(help="Texts that document frequencies come from (L5); by default the input's own.")
    ] = None,
    columns: Annotated[str, typer.Option(help="Columns of a table, such as text=body,id=key.")] = "",
) -> int:
    """Embed texts by a model, layer and pooling strategy; a text that fails is a row without vector."""
    from poolbench.model_folders.folders import list_folder
    from poolbench.pooling.registry import STRATEGIES
    from poolbench_corpora.own import parse_columns
    from poolbench_driver.adhoc.embedding import Embedder, replacing, writer_of
    from poolbench_driver.cluster.services import open_services
    from poolbench_driver.models import obtain

    write, spec = writer_of(output), STRATEGIES.get(strategy)
    spec.resolve(parse_params(params))
    for name, value, allowed in (("padding side", padding_side, SIDES), ("sinks", sinks, SINKS)):
        if value not in allowed:
            raise ConfigError(f"{name} {value!r} is unknown; allowed: {', '.join(allowed)}")
    lines = read_lines(input_, parse_columns(columns) if columns else None)
    obtain(model)
    settings: dict[str, Any] = {
        "model": list_folder(model),
        "strategy": strategy,
        "layer": layer,
        "padding_side": padding_side,
        "sinks": sinks,
    }
    settings |= {"params": parse_params(params), "batch_size": batch_size}
    try:
        reference = _reference(spec, lines, input_, idf_texts)
        embedder = Embedder(open_services(), settings, reference)
        with typer.progressbar(
            length=len(lines), label="embedding; a model that is not loaded yet takes a while", file=sys.stderr
        ) as bar:
            table = embedder.run(lines, bar.update)
        with replacing(output) as partial:
            write(table, partial)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; {output} was not written", err=True)
        raise SystemExit(Exit.INTERRUPTED) from None
    return _report(table, output)


def explain(
    text: Annotated[str, typer.Argument(help="The text whose tokens are explained.")],
    model: Annotated[str, typer.Option(help="Preset id, folder or Hugging Face id.")] = "demo",
    strategy: Annotated[str, typer.Option(help="Id of a pooling strategy: see `ls strategies`.")] = "A1_mean",
    layer: Annotated[int, typer.Option(help="Block index; negative ones count from the end.")] = -1,
    direction: Annotated[
        Path | None, typer.Option(help="File that `vectors import` reads: how far each token reaches along its vector.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, as `POST /extractor/explain` answers.")] = False,
) -> int:
    """Show what each token of a text adds to its vector: its weight, and its part of a projection."""
    from poolbench.model_folders.folders import list_folder
    from poolbench.pooling.registry import STRATEGIES
    from poolbench_driver.adhoc.embedding import Embedder, Reference
    from poolbench_driver.cluster.services import open_services
    from poolbench_driver.models import obtain
    from poolbench_driver.vectors.importing import read_for_model

    obtain(model)
    settings = {"model": list_folder(model), "strategy": strategy, "layer": layer}
    reference = Reference.of([TextLine(1, text)], "the text") if STRATEGIES.get(strategy).reads_annotations else None
    numbers = None if direction is None else read_for_model(direction, model, layer)[layer].tolist()
    answer = Embedder(open_services(), settings, reference).explain(text, numbers)
    if as_json:
        print_data(answer, answer["texts"][0].get("tokens"))
    (explained,) = answer["texts"]
    if explained["status"] != Status.OK:
        typer.echo(f"{explained['status']}: {explained['reason']}", err=True)
        return Exit.FAILURES
    if not as_json:
        rows = [
            {
                "token": token["text"] or "(special)",
                "weight": f"{token['weight']:.4f}",
                "contribution": "" if token["contribution"] is None else f"{token['contribution']:+.4f}",
            }
            for token in explained["tokens"]
        ]
        columns = ("token", "weight") if numbers is None else ("token", "weight", "contribution")
        print_table(rows, columns, f"{answer['strategy']} at layer {answer['layer']}")
        if numbers is not None:
            typer.echo(f"projection {explained['projection']:+.4f}, the sum of the contributions")
    return Exit.DONE


def parse_params(given: str | None) -> dict[str, Any]:
    """Return parameters from `k=4`, `k=4,l=2` or a JSON object; raise ConfigError for anything else."""
    if not given:
        return {}
    try:
        if not given.lstrip().startswith("{"):
            return dict(_pair(part) for part in given.split(","))
        return dict(json.loads(given))
    except ValueError:
        raise ConfigError(f"--params {given!r} is neither name=value nor a JSON object; write k=4") from None


def _pair(part: str) -> tuple[str, Any]:
    name, sign, value = (piece.strip() for piece in part.partition("="))
    if not (name and sign and value):
        raise ValueError(part)
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _reference(spec: StrategySpec, lines: list[TextLine], input_: Path, idf_texts: Path | None) -> Reference | None:
    """Return the texts of the document frequencies; None where the strategy reads no annotation."""
    from poolbench_driver.adhoc.embedding import Reference

    if not spec.reads_annotations:
        if idf_texts is not None:
            raise ConfigError(f"--idf-texts: strategy {spec.id} reads no annotations; leave it out")
        return None
    if idf_texts is None:
        return Reference.of(lines, f"the input {input_.name}")
    return Reference.of(read_lines(idf_texts), idf_texts.name)


def _report(table: pa.Table, output: Path) -> int:
    """Print what was written and which lines failed; return the exit code."""
    from poolbench_driver.adhoc.embedding import num_fallbacks

    notes = {name.decode(): value.decode() for name, value in table.schema.metadata.items()}
    failed = [row for row in table.select(["line", "status", "reason"]).to_pylist() if row["status"] != Status.OK]
    num = table.num_rows - len(failed)
    typer.echo(f"{output}: {num} vectors of width {notes['width']}; {len(failed)} of {table.num_rows} texts failed")
    if "idf_source" in notes:
        typer.echo(f"document frequencies (L5): {notes['idf_source']}", err=True)
    if fallbacks := num_fallbacks(table):
        typer.echo(
            f"{notes['strategy']} found nothing to select in {fallbacks} texts: their vectors are A1's", err=True
        )
    for row in failed:
        typer.echo(f"line {row['line']}: {row['status']}: {row['reason']}", err=True)
    return Exit.FAILURES if failed else Exit.DONE


TASKS = ("concept", "classification", "regression")
Vectors = Annotated[Path, typer.Argument(help=".npy [rows, width], or .parquet of `embed`.")]


def probe(
    vectors: Vectors,
    labels: Annotated[Path, typer.Argument(help=".npy of 0 and 1, of classes, or of real values [rows].")],
    groups: Annotated[Path | None, typer.Option(help=".npy of group ids [rows].")] = None,
    pairs: Annotated[Path | None, typer.Option(help=".npy of matched pair ids [rows], empty for none.")] = None,
    domains: Annotated[Path | None, typer.Option(help=".npy of domains [rows], for leave-one-domain-out.")] = None,
    task: Annotated[
        str | None, typer.Option(help="concept, classification or regression; default: by the labels.")
    ] = None,
    splits: Annotated[Path | None, typer.Option(help=".npy of train, dev, test [rows]; drawn if absent.")] = None,
    words: Annotated[Path | None, typer.Option(help=".npy of word types [rows]: control labels per type.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write figures, scores and folds to this JSON file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures, scores and folds as JSON.")] = False,
) -> None:
    """Compute D1 of your vectors, or scores, selectivity and code length of another task."""
    from poolbench_driver.adhoc.arrays import load_labels, load_names, load_vectors
    from poolbench_driver.cluster.services import open_services

    if task is not None and task not in TASKS:
        raise InputError(f"--task is {task!r}; allowed: {', '.join(TASKS)}")
    body: dict[str, Any] = {"vectors": load_vectors(vectors).rows()}
    body["labels"] = load_labels(labels, are_classes=task != "regression")
    for name, file in (("groups", groups), ("splits", splits), ("words", words), ("domains", domains)):
        if file is not None:
            body[name] = load_names(file)
    if pairs is not None:
        body["pairs"] = [name or None for name in load_names(pairs, may_lack=True)]
    if task is not None:
        body["task"] = task
    if words is not None:
        body["task_params"] = {"control": "word_type"}
    answer = open_services().post("prober", "probe", body)
    text = json.dumps(answer, indent=1, ensure_ascii=False)
    if output is not None:
        output.write_text(text + "\n", "utf-8")
    if as_json:
        print_data(answer, answer["measures"])
    else:
        print_table([_figure(measure) for measure in answer["measures"]], FIGURES, f"task: {answer['task']}")


#: Columns of the table of figures.
FIGURES = ("figure", "value", "95 % interval", "n", "groups", "note")


def _figure(measure: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table; a figure that is null has its status and reason."""
    params = json.loads(measure["params"] or "{}")
    name, direction = [measure["metric"]], measure["direction"]
    name += [direction] if direction and not measure["metric"].endswith(f".{direction}") else []
    name += [f"{key}={value}" for key, value in params.items()]
    low, high, value = measure["ci_low"], measure["ci_high"], measure["value"]
    null = f"{measure['status']}: " if value is None else ""
    return {
        "figure": " ".join(name),
        "value": None if value is None else f"{value:.3f}",
        "95 % interval": None if low is None else f"{low:.3f} to {high:.3f}",
        "n": measure["n"],
        "groups": measure["num_groups"],
        "note": f"{null}{measure['reason'] or ''}".rstrip(": "),
    }


#: What vectors of one direction have in common.
MADE_BY = ("model", "model_revision", "layer", "strategy", "params", "sinks")


def direction(
    positives: Vectors,
    output: Annotated[Path, typer.Option(help="Where the direction goes: .npy [width], of unit norm.")],
    negatives: Annotated[
        Path | None, typer.Argument(help="Vectors of the other class; left out with --labels.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help=".npy of 1 and 0 [rows], for one file of both classes.")] = None,
    method: Annotated[str, typer.Option(help="Construction: C1, C2, C3, C4, LDA or C1_centred.")] = "C1",
    seed: Annotated[int, typer.Option(help="Of random pairs (C4).")] = 0,
) -> None:
    """Make a direction from the vectors of two classes, for `steer --edit`."""
    import numpy as np

    from poolbench_driver.adhoc.arrays import load_labels, load_vectors
    from poolbench_driver.cluster.services import open_services

    if (negatives is None) == (labels is None):
        raise InputError("give the vectors of the other class as a second file, or --labels: one of the two")
    if output.suffix != ".npy":
        raise InputError(f"--output {output}: a direction is written as .npy")
    first = load_vectors(positives)
    rows = first.rows()
    if negatives is not None:
        other = load_vectors(negatives)
        apart = [name for name in MADE_BY if first.made_by.get(name) != other.made_by.get(name)]
        if apart and first.made_by and other.made_by:
            raise InputError(f"{positives} and {negatives} differ in {', '.join(apart)}: embed both in the same way")
        classes: list[Any] = [1] * len(rows) + [0] * len(other.matrix)
        rows += other.rows()
    else:
        classes = load_labels(labels)  # type: ignore[arg-type]
        if len(classes) != len(rows):
            raise InputError(f"{labels} has {len(classes)} labels for {len(rows)} vectors; one each is needed")
    usable = [index for index, row in enumerate(rows) if row is not None]
    body = {
        "vectors": [rows[i] for i in usable],
        "labels": [classes[i] for i in usable],
        "method": method,
        "seed": seed,
    }
    answer = open_services().post("prober", "direction", body)
    np.save(output, np.array(answer["direction"], np.float32))
    counts = (
        f"{sum(classes[i] == 1 for i in usable)} positive and {sum(classes[i] == 0 for i in usable)} negative vectors"
    )
    failed = f"; {len(rows) - len(usable)} that failed are left out" if len(usable) < len(rows) else ""
    typer.echo(f"{output}: {answer['method']} of {counts}, norm {answer['raw_norm']:.4g} before scaling to 1{failed}")
    layer, model = first.made_by.get("layer", "LAYER"), first.made_by.get("model", "")
    model_option = f" --model {model}" if model not in ("", "demo") else ""
    how = f"{model_option} --edit {output}:{layer}:0.3 --unit residual_norm"
    typer.echo(f"then: poolbench-driver steer PROMPT{how}", err=True)


#: Texts of one request: some seconds of work on one core, so that progress shows.
REQUEST_TEXTS = 200
SHOWN_CHARACTERS = 60


def score(
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to score; or give --input.")] = None,
    input_: Annotated[
        Path | None,
        typer.Option("--input", help="A table (CSV, JSONL, ...) with 'text' and perhaps 'id', or .txt, one a line."),
    ] = None,
    scorer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<str>", help="Concept, concept@base, or an id or key of `ls scorers`; several score at once."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Print P(concept) of texts by trained or imported scorers."""
    from poolbench_driver.cluster.services import open_services

    if not scorer:
        raise InputError("no --scorer: give a concept such as contrast, or several; `ls scorers` lists what there is")
    lines = _lines(texts or [], input_)
    answer = _score(open_services(), lines, list(dict.fromkeys(scorer)))
    if as_json:
        by_text = zip(answer["ids"], *(one["scores"] for one in answer["scorers"]), strict=True)
        print_data(answer, [dict(zip(("id", *dict.fromkeys(scorer)), row, strict=True)) for row in by_text])
    else:
        _print(answer["scorers"], lines)


def _lines(texts: Sequence[str], file: Path | None) -> list[TextLine]:
    """Return the texts of the command line or of the file; raise InputError for both, neither or an empty text."""
    if bool(texts) == (file is not None):
        raise InputError("give texts as arguments, or a file with --input: one of the two")
    if file is not None:
        return read_texts(file)
    if empty := [index for index, text in enumerate(texts, 1) if not text.strip()]:
        raise InputError(f"text {empty[0]} is empty: nothing to score")
    return [TextLine(number, text) for number, text in enumerate(texts, 1)]


def _score(services: Services, lines: Sequence[TextLine], names: Sequence[str]) -> dict[str, Any]:
    """Return the service's response to all texts; they are sent in parts for the progress bar."""
    whole: list[dict[str, Any]] = []
    with typer.progressbar(length=len(lines), label="scoring", file=sys.stderr) as bar:
        for start in range(0, len(lines), REQUEST_TEXTS):
            part = lines[start : start + REQUEST_TEXTS]
            body = {"texts": [line.text for line in part], "scorers": list(names)}
            answer = services.post("scorer", "score", body)["scorers"]
            whole = whole or [{**one, "name": name, "scores": []} for name, one in zip(names, answer, strict=True)]
            for scorer, one in zip(whole, answer, strict=True):
                scorer["scores"] += one["scores"]
            bar.update(len(part))
    return {"ids": [_name(line) for line in lines], "scorers": whole}


def _print(scorers: Sequence[dict[str, Any]], lines: Sequence[TextLine]) -> None:
    columns = [one["name"] for one in scorers]
    rows = [
        {"id": _name(line), "text": _shortened(line.text)}
        | {name: f"{one['scores'][index]:.3f}" for name, one in zip(columns, scorers, strict=True)}
        for index, line in enumerate(lines)
    ]
    print_table(rows, ("id", *columns, "text"))
    for one in scorers:
        if (gate := one["gate"]) is not None and not gate["passed"]:
            typer.echo(f"{one['name']}: this scorer failed its gate, so its scores say little: {gate['reason']}")


def _name(line: TextLine) -> str:
    return line.id if line.id is not None else str(line.number)


def _shortened(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= SHOWN_CHARACTERS else flat[: SHOWN_CHARACTERS - 1] + "…"
