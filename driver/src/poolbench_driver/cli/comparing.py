"""compare and ranks: what changed between two runs, and ranks over several. Runs of this machine need no cluster."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from poolbench.contracts.wire import Exit
from poolbench.errors import ConfigError, UnknownNameError

FORMATS = ("table", "markdown", "json")


def compare(
    first: Annotated[str, typer.Argument(help="Run id, 'latest', or a run's folder.")],
    second: Annotated[str, typer.Argument(help="Another; differences are second minus first.")],
    output: Annotated[Path, typer.Option(help="Folder that runs lie in.")] = Path("runs"),
    metric: Annotated[
        list[str] | None, typer.Option(metavar="<str>", help="Only this metric; may be given several times.")
    ] = None,
    across: Annotated[
        str | None, typer.Option(help="Comma-separated: model, data, versions. Pair cells although these differ.")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="table, markdown or json.")] = "table",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All changes, and what stayed the same.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit code 1 when any cell differs.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the resamples.")] = 0,
) -> int:
    """Tell what changed between two runs, paired by cell, with intervals over concepts."""
    if form not in FORMATS:
        raise UnknownNameError("format", form, FORMATS)
    from poolbench_driver.comparison import as_markdown, as_sentence, as_tables, compare_runs, read_results
    from poolbench_driver.records import find_run

    folders = [find_run(output, name) for name in (first, second)]
    rows = [read_results(folder) for folder in folders]
    names = [part.strip() for part in across.split(",") if part.strip()] if across else []
    measured = {row["metric"] for run_rows in rows for row in run_rows}
    measured = {name for name in measured if not name.startswith("rank.")}  # of a run's strategies among themselves
    for metric_name in metric or ():
        if metric_name not in measured:
            raise UnknownNameError("metric", metric_name, measured)
    changes = compare_runs(*rows, across=names, metrics=metric or None, seed=seed)
    tables = as_tables(changes, everything=everything)
    sentence = as_sentence(changes, *(folder.id for folder in folders))
    if as_json or form == "json":
        ids = {"first": folders[0].id, "second": folders[1].id}
        typer.echo(json.dumps({**ids, **asdict(changes)}, indent=1))
    elif form == "markdown":
        typer.echo(as_markdown(tables, sentence))
    else:
        from poolbench_driver.cli.display import print_table

        typer.echo(sentence)
        for title, columns, lines in tables:
            print_table(lines, columns, title)
    return Exit.FAILURES if check and changes.changed() else Exit.DONE


def ranks(
    names: Annotated[
        list[str] | None, typer.Argument(help="Runs of one budget and corpus, e.g. of several models; default: latest.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder that runs lie in.")] = Path("runs"),
    metric: Annotated[str | None, typer.Option(help="A ranked metric; default: what the suite shows first.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with all pairs.")] = False,
) -> int:
    """Rank the strategies over one or more runs, as Markdown: overall, by family, concept family and model."""
    from poolbench_driver.comparison import join_rows, read_results
    from poolbench_driver.contract.registry import SUITES
    from poolbench_driver.pages.boards.rank_parts import rank_parts
    from poolbench_driver.pages.boards.ranks import build_ranks, ranked_metrics
    from poolbench_driver.pages.text import parts_markdown
    from poolbench_driver.records import find_run

    rows = join_rows([read_results(find_run(output, name)) for name in names or ["latest"]])
    metric = metric or SUITES.get(rows[0]["suite"]).board.primary
    if metric not in (metrics := ranked_metrics(rows)):
        raise UnknownNameError("ranked metric", metric, metrics)
    view = build_ranks(rows, metric)
    if metric not in view.boards:
        raise ConfigError(f"{metric}: no concept has two strategies with a value in every model and layer")
    markdown = "\n\n".join(parts_markdown(list(rank_parts(view))))
    typer.echo(json.dumps(view.to_json(), indent=1) if as_json else markdown)
    return Exit.DONE
