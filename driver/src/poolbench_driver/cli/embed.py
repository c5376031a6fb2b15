"""The command `embed`: vectors of the texts of a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poolbench.contracts.wire import Exit
from poolbench.errors import ConfigError
from poolbench.statuses import Status
from poolbench_driver.adhoc.texts import TextLine, read_lines

if TYPE_CHECKING:
    import pyarrow as pa

    from poolbench.pooling.registry import StrategySpec
    from poolbench_driver.adhoc.embedding import Reference

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
    from poolbench.models.folders import list_folder
    from poolbench.pooling.registry import STRATEGIES
    from poolbench_corpora.own import parse_columns
    from poolbench_driver.adhoc.embedding import Embedder, replacing, writer_of
    from poolbench_driver.cluster.session import open_services
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
