"""corpus: build, validate, import and export passages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from poolbench.concepts import get_concept, list_concepts
from poolbench.config import BUDGETS, CorpusConfig, RunConfig
from poolbench.corpora.io import read_concept, write_concept, write_manifest
from poolbench.corpora.validate import validate_passages
from poolbench.errors import CorpusError, RestrictedError, UnknownNameError
from poolbench_driver.corpora import dataset_identity, passages_step

app = typer.Typer(help="Build, validate, import and export passages.", no_args_is_help=True)

Concepts = Annotated[
    str | None, typer.Option(help="Comma-separated concept ids; default: all that can be had.")
]
SPLITS = ("train", "test", "scorer")


@app.command()
def build(
    output: Annotated[Path, typer.Argument(help="Folder to write the JSONL files to.")],
    source: Annotated[str, typer.Option(help="planted or real.")] = "real",
    concepts: Concepts = None,
    budget: Annotated[str, typer.Option(help="Sizes: demo, card or full.")] = "demo",
    seed: int = 0,
) -> int:
    """Make corpora from the planted grammar or from the real-text archives."""
    if budget not in BUDGETS:
        raise UnknownNameError("budget", budget, BUDGETS)
    config = RunConfig(budget=BUDGETS[budget], corpus=CorpusConfig(source=source, seed=seed))
    failed = 0
    for name in _names(concepts):
        concept = get_concept(name)
        if concept.sensitive and concepts is None:
            typer.echo(f"{name}: sensitive, only on request by --concepts")
            continue
        try:
            for split in SPLITS:
                write_concept(output, passages_step(config, concept, split).build())
        except CorpusError as error:
            failed += 1
            typer.echo(f"{name}: {error}", err=True)
            continue
        typer.echo(f"{name}: written to {output / name}")
    write_manifest(output, {**dataset_identity(config), "budget": budget})
    return 1 if failed else 0


@app.command()
def validate(
    folder: Annotated[Path, typer.Argument(help="Folder of JSONL files.")], concepts: Concepts = None
) -> int:
    """Check every construction rule; exit code 1 when one is broken."""
    broken = 0
    for name in _names(concepts, folder):
        findings = validate_passages(read_concept(folder, name), get_concept(name))
        broken += len(findings)
        typer.echo(f"{name}: {'ok' if not findings else f'{len(findings)} findings'}")
        for finding in findings:
            typer.echo(f"  {finding}")
    return 1 if broken else 0


@app.command("import")
def import_(
    folder: Annotated[Path, typer.Argument(help="Folder in the published layout.")],
    output: Annotated[Path, typer.Argument(help="Folder to write our layout to.")],
    concepts: Concepts = None,
) -> None:
    """Read JSONL files in the published layout, check them, and write them with our extension fields."""
    for name in _names(concepts, folder):
        table = read_concept(folder, name)
        write_concept(output, table)
        typer.echo(f"{name}: {table.num_rows} passages")
    write_manifest(output, {"source": "import"})


@app.command()
def export(
    output: Annotated[Path, typer.Argument(help="Folder to write the JSONL files to.")],
    concepts: Concepts = None,
    budget: str = "demo",
) -> None:
    """Write the planted corpora as JSONL files in the published layout; sensitive concepts are refused."""
    names = _names(concepts)
    sensitive = [name for name in names if get_concept(name).sensitive]
    if concepts is not None and sensitive:
        raise RestrictedError(f"{', '.join(sensitive)}: passages of sensitive concepts are never exported")
    build(output, source="planted", concepts=",".join(n for n in names if n not in sensitive), budget=budget)


def _names(text: str | None, folder: Path | None = None) -> list[str]:
    if text:
        return [get_concept(name.strip()).id for name in text.split(",")]
    if folder is None:
        return [concept.id for concept in list_concepts()]
    if not folder.is_dir():
        raise CorpusError(f"corpus {folder}: no such folder")
    known = [concept.id for concept in list_concepts()]
    names = [name for name in known if (folder / name).is_dir()]
    if not names:
        raise CorpusError(f"corpus {folder}: no folder named after a concept ({', '.join(known)})")
    return names
