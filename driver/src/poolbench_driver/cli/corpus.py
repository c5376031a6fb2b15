"""corpus: validate, import and export passages."""

from pathlib import Path
from typing import Annotated

import typer

from poolbench.contracts.wire import Exit
from poolbench_driver.cli.tables import AsJson, print_data

app = typer.Typer(help="Validate, import and export passages.", no_args_is_help=True)

Concepts = Annotated[str | None, typer.Option(help="Comma-separated concept ids; default: all there are.")]
Output = Annotated[Path, typer.Argument(help="Folder to write the JSONL files to.")]
BudgetName = Annotated[str, typer.Option(help="Sizes of planted passages: demo, small, card or full.")]


@app.command()
def validate(
    folder: Annotated[Path, typer.Argument(help="Folder of JSONL files.")],
    concepts: Concepts = None,
    as_json: AsJson = False,
) -> int:
    """Check every construction rule and audit confounds; exit code 1 if a rule is broken or a verdict is not pass."""
    from poolbench_corpora.folders.importing import Validation, validations

    reports = list[Validation]()
    for validation in validations(folder, concepts):
        reports.append(validation)
        if not as_json:
            typer.echo("\n".join(validation.lines()))
    valid = all(report.is_valid for report in reports)
    if as_json:
        print_data({"folder": str(folder), "valid": valid, "concepts": [report.to_dict() for report in reports]})
    return Exit.DONE if valid else Exit.FAILURES


@app.command()
def examples(
    patterns: Annotated[str, typer.Argument(help="Ids of probing sets, or patterns such as ewt-*, with commas.")],
    output: Annotated[Path, typer.Option(help="JSONL file to write.")],
    corpus: Annotated[str, typer.Option(help="planted, real, or a folder of definitions.")] = "planted",
    seed: Annotated[int, typer.Option(help="Seed that chooses examples where a set has more than it may have.")] = 0,
) -> None:
    """Write the examples of probing sets by id, such as to compute vectors of them elsewhere (--vectors)."""
    import json

    from poolbench.errors import CorpusError
    from poolbench_corpora.probing import example_rows
    from poolbench_driver.corpora.sources import chosen_sets

    catalogue, probing_sets = chosen_sets(patterns.split(","), corpus)
    data, notes = catalogue.read_all(probing_sets, seed)
    for note in notes:
        typer.echo(str(note), err=True)
    if not data:
        raise CorpusError(f"none of {patterns} can be read")
    rows = [json.dumps(row, ensure_ascii=False) for set_data in data.values() for row in example_rows(set_data)]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("\n".join(rows) + "\n", "utf-8")
    typer.echo(f"{output}: {len(rows):,} examples of {len(data)} set{'s' if len(data) > 1 else ''}")


@app.command("import")
def import_(
    source: Annotated[
        str, typer.Argument(help="Folder in the published layout, with --concept a table; or hf:OWNER/NAME.")
    ],
    output: Output,
    concepts: Concepts = None,
    tokenizer: Annotated[str, typer.Option(help="Tokenizer that measured the token counts.")] = "unknown",
    concept: Annotated[str | None, typer.Option(help="Concept of a table (CSV, JSONL, Parquet, ...).")] = None,
    columns: Annotated[str, typer.Option(help="Columns of a table, such as text=body,label=stars.")] = "",
    positive: Annotated[str | None, typer.Option(help="Label of the positives; default: 1 or true.")] = None,
    licence: Annotated[str, typer.Option(help="Licence of the texts of a table.")] = "",
) -> None:
    """Read the published layout, or a table or saved dataset, check it, and write it with our extension fields."""
    from poolbench_corpora.folders.hub import source_folder
    from poolbench_corpora.folders.importing import import_folder, import_table
    from poolbench_corpora.own import parse_columns, read_labelled
    from poolbench_corpora.reading import TABLE_ENDINGS

    if concept is not None:
        if concepts is not None:
            raise typer.BadParameter("--concept is for a table, --concepts for the published layout")
        names, folder = parse_columns(columns), source_folder(source, TABLE_ENDINGS)
        import_table(output, concept, read_labelled(folder, names, positive, licence))
        return
    if columns or positive or licence:
        raise typer.BadParameter("--columns, --positive and --licence are for a table: name its --concept")
    import_folder(source_folder(source), output, concepts, tokenizer)


@app.command()
def export(
    output: Output,
    corpus: Annotated[str, typer.Option(help="planted, real, or a folder.")] = "planted",
    concepts: Concepts = None,
    budget: BudgetName = "demo",
    seed: Annotated[int, typer.Option(help="Seed of planted passages.")] = 0,
) -> None:
    """Write a corpus in the published layout, with card, Croissant metadata and checksums; never sensitive concepts."""
    from poolbench_driver.config import corpus_folder
    from poolbench_driver.corpora.dataset_card import export_folder, export_planted

    if corpus == "planted":
        export_planted(output, concepts, budget, seed)
    else:
        export_folder(corpus_folder(corpus), output, concepts)
