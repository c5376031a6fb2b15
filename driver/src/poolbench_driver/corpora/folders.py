"""Corpora as folders of JSONL files: build and import them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import typer

from poolbench.concepts import CONCEPTS, exportable, require_exportable
from poolbench.config import BUDGETS, CorpusConfig, RunConfig
from poolbench.corpora.groups import has_inferred_documents
from poolbench.corpora.io import CorpusManifest, read_concept, write_corpus
from poolbench.errors import CorpusError, UnknownNameError
from poolbench_driver.corpora.sources import concept_table, dataset_identity, folder_digest

SOURCES = ("planted", "real")


def build_folder(output: Path, source: str, concepts: Sequence[str], budget: str, seed: int, *, required: bool) -> int:
    """Build the corpora of some concepts; return 1 if one that is `required` could not be built."""
    if budget not in BUDGETS:
        raise UnknownNameError("budget", budget, BUDGETS)
    if source not in SOURCES:
        raise UnknownNameError("source", source, SOURCES)
    config = RunConfig(budget=BUDGETS[budget], corpus=CorpusConfig(source=source, seed=seed))
    made = [table for name in concepts if (table := _made(config, name)) is not None]
    if not made:
        raise CorpusError(f"no concept could be made from source {source!r}")
    manifest = CorpusManifest(
        revision=str(dataset_identity(config)["revision"]),
        tokenizer=(made[0].schema.metadata or {}).get(b"tokenizer", b"words").decode(),
        window=_window(made),
        recipe=f"poolbench-driver corpus build --source {source} --budget {budget} --seed {seed}",
    )
    write_corpus(pa.concat_tables([table.replace_schema_metadata(None) for table in made]), output, manifest)
    typer.echo(f"written to {output}")
    return 1 if required and len(made) < len(concepts) else 0


def import_folder(folder: Path, output: Path, concepts: str | None, tokenizer: str) -> None:
    """Read the published layout and write it with documents and manifest."""
    tables = [read_concept(folder, name) for name in concepts_in(folder, concepts)]
    passages = pa.concat_tables(tables)
    manifest = CorpusManifest(
        revision=folder_digest(folder),
        tokenizer=tokenizer,
        window=_window(tables),
        partition_version=0,
        inferred_documents=has_inferred_documents(passages),
        recipe="poolbench-driver corpus import",
    )
    write_corpus(passages, output, manifest)
    typer.echo(f"{passages.num_rows} passages of {len(tables)} concepts written to {output}")


def writable_concepts(text: str | None) -> list[str]:
    """Return the requested concepts, or all that may leave the store; raise RestrictedError for a sensitive one."""
    if text is None:
        return exportable(concept.id for concept in CONCEPTS.all())
    chosen = [CONCEPTS.get(name).id for name in _split(text)]
    require_exportable(chosen)
    return chosen


def concepts_in(folder: Path, text: str | None) -> list[str]:
    """Return the requested concepts, or those in a corpus folder; raise CorpusError if it has none."""
    if not folder.is_dir():
        raise CorpusError(f"corpus {folder}: no such folder")
    if text is not None:
        return [CONCEPTS.get(name).id for name in _split(text)]
    known = [concept.id for concept in CONCEPTS.all()]
    names = [name for name in known if (folder / name).is_dir()]
    if not names:
        raise CorpusError(f"corpus {folder}: no folder named after a concept ({', '.join(known)})")
    return names


def _made(config: RunConfig, name: str) -> pa.Table | None:
    try:
        table = concept_table(config, name)
    except CorpusError as error:
        typer.echo(f"{name} ... none: {error}")
        return None
    typer.echo(f"{name} ... {table.num_rows} passages")
    return table


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _window(tables: Sequence[pa.Table]) -> tuple[int, int]:
    counts = [count for table in tables for count in table["token_count"].to_pylist() if count is not None]
    return (min(counts), max(counts)) if counts else (0, 0)
