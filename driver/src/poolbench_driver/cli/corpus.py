"""corpus: build, validate, import and export passages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

from poolbench.concepts import get_concept, list_concepts
from poolbench.config import BUDGETS, CorpusConfig, RunConfig
from poolbench.corpora.groups import has_inferred_documents
from poolbench.corpora.io import read_concept, write_corpus
from poolbench.corpora.manifest import CorpusManifest, read_manifest
from poolbench.corpora.validate import validate_corpus
from poolbench.errors import CorpusError, RestrictedError, UnknownNameError
from poolbench_driver.corpora import concept_table, dataset_identity, folder_digest

app = typer.Typer(help="Build, validate, import and export passages.", no_args_is_help=True)

Concepts = Annotated[str | None, typer.Option(help="Comma-separated concept ids; default: all there are.")]
Output = Annotated[Path, typer.Argument(help="Folder to write the JSONL files to.")]


@app.command()
def build(
    output: Output,
    source: Annotated[str, typer.Option(help="planted or real.")] = "real",
    concepts: Concepts = None,
    budget: Annotated[str, typer.Option(help="Sizes: demo, card or full.")] = "demo",
    seed: int = 0,
) -> int:
    """Make corpora from the planted grammar or from the real-text archives."""
    if budget not in BUDGETS:
        raise UnknownNameError("budget", budget, BUDGETS)
    config = RunConfig(budget=BUDGETS[budget], corpus=CorpusConfig(source=source, seed=seed))
    made, missing = [], 0
    for name in _writable(concepts):
        typer.echo(f"{name} ... ", nl=False)
        try:
            made.append(concept_table(config, name))
            typer.echo(f"{made[-1].num_rows} passages")
        except CorpusError as error:
            missing += 1
            typer.echo(f"none: {error}")
    if not made:
        raise CorpusError(f"no concept could be made from source {source!r}")
    identity = dataset_identity(config)
    manifest = CorpusManifest(
        revision=str(identity["revision"]),
        tokenizer=(made[0].schema.metadata or {}).get(b"tokenizer", b"words").decode(),
        window=_window(made),
        recipe=f"poolbench-driver corpus build --source {source} --budget {budget} --seed {seed}",
    )
    write_corpus(pa.concat_tables([table.replace_schema_metadata(None) for table in made]), output, manifest)
    typer.echo(f"written to {output}")
    return 1 if missing and concepts else 0


@app.command()
def validate(
    folder: Annotated[Path, typer.Argument(help="Folder of JSONL files.")], concepts: Concepts = None
) -> int:
    """Check every construction rule; exit code 1 when one is broken."""
    broken, manifest = 0, read_manifest(folder)
    for name in _in_folder(concepts, folder):
        findings = validate_corpus(read_concept(folder, name), window=manifest.window if manifest else None)
        broken += len(findings)
        typer.echo(f"{name}: {f'{len(findings)} findings' if findings else 'ok'}")
        for finding in findings:
            typer.echo(f"  {finding.rule}: {finding.message} {' '.join(finding.passages)}")
    return 1 if broken else 0


@app.command("import")
def import_(
    folder: Annotated[Path, typer.Argument(help="Folder in the published layout.")],
    output: Output,
    concepts: Concepts = None,
    tokenizer: Annotated[str, typer.Option(help="Tokenizer that measured the token counts.")] = "unknown",
) -> None:
    """Read JSONL files in the published layout, check them, and write them with our extension fields."""
    tables = [read_concept(folder, name) for name in _in_folder(concepts, folder)]
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


@app.command()
def export(output: Output, concepts: Concepts = None, budget: str = "demo") -> int:
    """Write the planted corpora in the published layout; sensitive concepts are refused."""
    return build(output, source="planted", concepts=",".join(_writable(concepts)), budget=budget)


def _window(tables: list[pa.Table]) -> tuple[int, int]:
    counts = [count for table in tables for count in table["token_count"].to_pylist() if count is not None]
    return (min(counts), max(counts)) if counts else (0, 0)


def _writable(text: str | None) -> list[str]:
    """The concepts asked for, or all that are not sensitive: sensitive passages never leave the store.

    Raises:
        RestrictedError: If a sensitive one is asked for by name.
    """
    if text is None:
        return [concept.id for concept in list_concepts() if not concept.sensitive]
    chosen = [get_concept(name.strip()) for name in text.split(",")]
    sensitive = [concept.id for concept in chosen if concept.sensitive]
    if sensitive:
        raise RestrictedError(f"{', '.join(sensitive)}: passages of sensitive concepts are never written out")
    return [concept.id for concept in chosen]


def _in_folder(text: str | None, folder: Path) -> list[str]:
    if text:
        return [get_concept(name.strip()).id for name in text.split(",")]
    if not folder.is_dir():
        raise CorpusError(f"corpus {folder}: no such folder")
    known = [concept.id for concept in list_concepts()]
    names = [name for name in known if (folder / name).is_dir()]
    if not names:
        raise CorpusError(f"corpus {folder}: no folder named after a concept ({', '.join(known)})")
    return names
