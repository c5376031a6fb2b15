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
from poolbench_driver.cli.tables import AsJson, print_data, print_shaded, print_table
from poolbench_driver.queries.texts import TextLine, read_lines, read_texts

if TYPE_CHECKING:
    from poolbench_driver.api.answers import Embeddings, Scores

_INPUT = typer.Option("--input", help="A table (CSV, JSONL, ...) with 'text' and perhaps 'id', or .txt, one a line.")


def embed(
    input_: Annotated[Path, _INPUT],
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
    from poolbench.pooling.registry import STRATEGIES
    from poolbench_corpora.own import parse_columns
    from poolbench_driver.api.cluster import Cluster
    from poolbench_driver.queries.embedding import Reference, replacing, writer_of

    write, spec = writer_of(output), STRATEGIES.get(strategy)
    lines = read_lines(input_, parse_columns(columns) if columns else None)
    reference = None
    if idf_texts is not None:
        reference = Reference.of(read_lines(idf_texts), idf_texts.name)
    elif spec.reads_annotations:
        reference = Reference.of(lines, f"the input {input_.name}")
    try:
        with typer.progressbar(
            length=len(lines), label="embedding; a model that is not loaded yet takes a while", file=sys.stderr
        ) as bar:
            embeddings = Cluster().embed(
                lines, model=model, strategy=strategy, layer=layer, params=parse_params(params), batch_size=batch_size,
                padding_side=padding_side, sinks=sinks, idf_texts=reference, progress=bar.update,
            )  # fmt: skip
        with replacing(output) as partial:
            write(embeddings.arrow, partial)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; {output} was not written", err=True)
        raise SystemExit(Exit.INTERRUPTED) from None
    return _report(embeddings, output)


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
    from poolbench_driver.api.cluster import Cluster

    explained = Cluster().explain(text, model=model, strategy=strategy, layer=layer, direction=direction)
    if as_json:
        print_data(explained.answer, explained.entry.get("tokens"))
    if explained.entry["status"] != Status.OK:
        typer.echo(f"{explained.entry['status']}: {explained.entry['reason']}", err=True)
        return Exit.FAILURES
    if not as_json:
        if sys.stdout.isatty():  # elsewhere the numbers below say it all
            print_shaded(explained.shaded)
        rows = [
            {
                "token": token["text"] or "(special)",
                "weight": f"{token['weight']:.4f}",
                "contribution": "" if token["contribution"] is None else f"{token['contribution']:+.4f}",
            }
            for token in explained.tokens
        ]
        columns = ("token", "weight") if explained.projection is None else ("token", "weight", "contribution")
        print_table(rows, columns, f"{explained.answer['strategy']} at layer {explained.answer['layer']}")
        if explained.projection is not None:
            typer.echo(f"projection {explained.projection:+.4f}, the sum of the contributions")
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


def _report(embeddings: Embeddings, output: Path) -> int:
    """Print what was written and which lines failed; return the exit code."""
    from poolbench_driver.queries.embedding import num_fallbacks

    notes, failed = embeddings.notes, embeddings.failed
    num = len(embeddings) - len(failed)
    typer.echo(f"{output}: {num} vectors of width {notes['width']}; {len(failed)} of {len(embeddings)} texts failed")
    if "idf_source" in notes:
        typer.echo(f"document frequencies (L5): {notes['idf_source']}", err=True)
    if fallbacks := num_fallbacks(embeddings.arrow):
        typer.echo(
            f"{notes['strategy']} found nothing to select in {fallbacks} texts: their vectors are A1's", err=True
        )
    for row in failed:
        typer.echo(f"line {row['line']}: {row['status']}: {row['reason']}", err=True)
    return Exit.FAILURES if failed else Exit.DONE


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
    from poolbench_driver.api.answers import FIGURES
    from poolbench_driver.api.cluster import Cluster
    from poolbench_driver.queries.arrays import load_labels, load_names, load_vectors

    files = {"groups": groups, "splits": splits, "words": words, "domains": domains}
    columns = {name: load_names(file) for name, file in files.items() if file is not None}
    if pairs is not None:
        columns["pairs"] = load_names(pairs, may_lack=True)
    matrix, classes = load_vectors(vectors), load_labels(labels, are_classes=task != "regression")
    probed = Cluster().probe(matrix, classes, task=task, **columns)
    text = json.dumps(probed.answer, indent=1, ensure_ascii=False)
    if output is not None:
        output.write_text(text + "\n", "utf-8")
    if as_json:
        print_data(probed.answer, probed.answer["measures"])
    else:
        print_table(probed.figures(), FIGURES, f"task: {probed.answer['task']}")


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

    from poolbench_driver.api.cluster import Cluster
    from poolbench_driver.queries.arrays import load_labels, load_vectors

    if (negatives is None) == (labels is None):
        raise InputError("give the vectors of the other class as a second file, or --labels: one of the two")
    if output.suffix != ".npy":
        raise InputError(f"--output {output}: a direction is written as .npy")
    result = Cluster().direction(
        load_vectors(positives),
        None if negatives is None else load_vectors(negatives),
        labels=None if labels is None else load_labels(labels),
        method=method,
        seed=seed,
    )
    np.save(output, result.vector)
    counts = f"{result.num_positive} positive and {result.num_negative} negative vectors"
    failed = f"; {result.num_left_out} that failed are left out" if result.num_left_out else ""
    typer.echo(f"{output}: {result.method} of {counts}, norm {result.raw_norm:.4g} before scaling to 1{failed}")
    layer, model = result.made_by.get("layer", "LAYER"), result.made_by.get("model", "")
    model_option = f" --model {model}" if model not in ("", "demo") else ""
    how = f"{model_option} --edit {output}:{layer}:0.3 --unit residual_norm"
    typer.echo(f"then: poolbench-driver steer PROMPT{how}", err=True)


SHOWN_CHARACTERS = 60


def score(
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to score; or give --input.")] = None,
    input_: Annotated[Path | None, _INPUT] = None,
    scorer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<str>", help="Concept, concept@base, or an id or key of `ls scorers`; several score at once."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print P(concept) of texts by trained or imported scorers."""
    from poolbench_driver.api.cluster import Cluster

    if not scorer:
        raise InputError("no --scorer: give a concept such as contrast, or several; `ls scorers` lists what there is")
    lines = _lines(texts or [], input_)
    with typer.progressbar(length=len(lines), label="scoring", file=sys.stderr) as bar:
        scores = Cluster().score(lines, scorer, progress=bar.update)
    if as_json:
        rows = scores.arrow.drop_columns(["text"]).to_pylist()
        print_data({"ids": scores.ids, "scorers": scores.scorers}, rows)
    else:
        _print(scores)


def _lines(texts: Sequence[str], file: Path | None) -> list[TextLine]:
    """Return the texts of the command line or of the file; raise InputError for both or neither."""
    if bool(texts) == (file is not None):
        raise InputError("give texts as arguments, or a file with --input: one of the two")
    if file is not None:
        return read_texts(file)
    return [TextLine(number, text) for number, text in enumerate(texts, 1)]


def _print(scores: Scores) -> None:
    columns = [one["name"] for one in scores.scorers]
    rows = [
        {name: f"{row[name]:.3f}" for name in columns} | {"id": row["id"], "text": _shortened(row["text"])}
        for row in scores
    ]
    print_table(rows, ("id", *columns, "text"))
    for note in scores.notes:
        typer.echo(note)


def _shortened(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= SHOWN_CHARACTERS else flat[: SHOWN_CHARACTERS - 1] + "…"
