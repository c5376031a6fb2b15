"""reproduce: an official result table beside a run, or its arithmetic alone. It needs no cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poolbench.contracts.wire import Exit
from poolbench.errors import ConfigError, NotFoundError, UnknownNameError

if TYPE_CHECKING:
    from poolbench.suites.official import OfficialModel, OfficialTable
    from poolbench_driver.reproduction import ComparedCell
    from poolbench_driver.rundir import RunFolder

_CORPUS = "corpora/published"
Tables = Sequence[tuple[str, list[dict[str, Any]]]]


def reproduce(
    table: Annotated[str, typer.Option(help="The table: official.")] = "official",
    model: Annotated[str | None, typer.Option(help="A model of the table; default: the run's.")] = None,
    run: Annotated[
        str | None, typer.Option(help="Run id, 'latest', or a run's folder; default: the newest of the model.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder that runs lie in.")] = Path("runs"),
    column: Annotated[
        list[str] | None, typer.Option(help="Only this column of the table; may be given several times.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only the table's own means, ranks and tests.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also the cells without a counterpart.")] = False,
    display: Annotated[str | None, typer.Option(help="rich, plain or json.")] = None,
    settings: Annotated[
        Path | None, typer.Option(help="Write the settings of the run that repeats the table to this file.")
    ] = None,
    corpus: Annotated[str, typer.Option(help="With --settings: folder of the published corpus.")] = _CORPUS,
) -> int:
    """Set the cells of an official table beside a run's: theirs, ours, difference and interval."""
    from poolbench.suites.official import official_table

    show = _display(display)
    official = official_table(table)
    if check:
        return _check(official, show)
    _require_columns(official, column or [])
    if settings is not None:
        _write_settings(official, model, corpus, settings)
    folder = _run_of(official, model, run, output)
    if folder is None:
        return _show_needs(official, official.model(model or ""), corpus, settings, output, show)
    return _compare(official, folder, column or [], everything, show)


def _check(table: OfficialTable, show: Show) -> int:
    from poolbench.suites.official import Meaning, check_table
    from poolbench_driver.reproduction import check_rows, disagreement_rows

    checks = check_table(table)
    damaged = sum(len(each.disagreements) for each in checks if each.meaning == Meaning.COPY)
    show(
        [("checks", check_rows(checks)), ("disagreements", disagreement_rows(checks))],
        [f"{damaged} figures of the copy are damaged" if damaged else "the copy agrees with all means of the source"],
        {"table": table.source["table"], "checks": [asdict(each) for each in checks]},
    )
    return Exit.FAILURES if damaged else Exit.DONE


def _require_columns(table: OfficialTable, columns: list[str]) -> None:
    known = [each.id for each in table.columns]
    for name in columns:
        if name not in known:
            raise UnknownNameError("column", name, known)


def _run_of(table: OfficialTable, model: str | None, run: str | None, output: Path) -> RunFolder | None:
    """Return the run to compare: the named one, or the newest of the model; None if there is none of the model."""
    from poolbench_driver.cli.comparing import find_run
    from poolbench_driver.rundir import list_runs

    if run is not None:
        folder = find_run(output, run)
        measured = table.model(folder.config().model)
        if model is not None and table.model(model) != measured:
            raise ConfigError(f"run {folder.id} measured {measured.preset}, not {model}; leave out --model or --run")
        return folder
    if model is None:
        raise ConfigError(f"give --model ({_models(table)}), --run, or --check for the arithmetic alone")
    wanted = table.model(model)
    for folder in list_runs(output):
        if folder.file("results.parquet").is_file() and _is_of(table, folder, wanted):
            return folder
    return None


def _is_of(table: OfficialTable, folder: RunFolder, wanted: OfficialModel) -> bool:
    try:
        return table.model(folder.config().model) == wanted
    except ConfigError:  # another model, or settings of another version
        return False


def _models(table: OfficialTable) -> str:
    return ", ".join(model.preset for model in table.models)


def _compare(table: OfficialTable, folder: RunFolder, columns: list[str], everything: bool, show: Show) -> int:
    from poolbench_driver.comparison import read_results
    from poolbench_driver.reproduction import (
        RunRows,
        cell_rows,
        compare_cells,
        other_settings,
        published_settings,
        summary_rows,
    )

    config = folder.config()
    model = table.model(config.model)
    run = RunRows(read_results(folder), _published(folder))
    cells = compare_cells(table, model, run, columns)
    differs = other_settings(config, published_settings(table, model, _CORPUS))
    show(
        [("cells", cell_rows(cells, everything=everything)), ("by column", summary_rows(cells))],
        [f"{folder.id} against {table.source['title']}, {model.preset} at layer {model.best_layer}", *differs],
        {"run": folder.id, "model": model.preset, "settings": differs, "cells": [asdict(cell) for cell in cells]},
    )
    return Exit.DONE if _compared(cells) else Exit.FAILURES


def _compared(cells: Sequence[ComparedCell]) -> bool:
    return any(cell.difference is not None for cell in cells)


def _published(folder: RunFolder) -> list[dict[str, Any]] | None:
    try:
        return folder.read_table("published").to_pylist()
    except NotFoundError:
        return None


def _show_needs(
    table: OfficialTable, model: OfficialModel, corpus: str, settings: Path | None, output: Path, show: Show
) -> int:
    """Say what the run that repeats the table needs and which command makes it; nothing is started."""
    from poolbench_driver.reproduction import needs_of, num_steered_texts, published_settings

    needs = needs_of(model, corpus)
    texts = num_steered_texts(published_settings(table, model, corpus))
    file = settings or "published.yaml"
    commands = [
        *([] if settings else [f"poolbench-driver reproduce --model {model.preset} --settings {file}"]),
        f"poolbench-driver run {file} --dry-run",
        f"poolbench-driver run {file}",
        f"poolbench-driver reproduce --model {model.preset}",
    ]
    lines = [
        f"no finished run of {model.preset} in {output}: nothing to compare, and nothing was started",
        f"the run steers {texts:,} texts along strategies, and more along null directions",
        *(f"then: {command}" for command in commands),
    ]
    rows = [{"needed": n.what, "found": "yes" if n.found else "no", "note": n.how} for n in needs]
    show([("what the run needs", rows)], lines, {"needs": [asdict(n) for n in needs], "commands": commands})
    return Exit.FAILURES


def _write_settings(table: OfficialTable, model: str | None, corpus: str, file: Path) -> None:
    import yaml

    from poolbench_driver.reproduction import published_settings

    if model is None:
        raise ConfigError(f"--settings needs --model ({_models(table)})")
    text = yaml.safe_dump(published_settings(table, table.model(model), corpus), sort_keys=False)
    file.write_text(f"# The run that repeats {table.source['title']}.\n{text}", "utf-8")


Show = Callable[[Tables, Sequence[str], dict[str, Any]], None]


def _display(name: str | None) -> Show:
    chosen = name or ("rich" if sys.stdout.isatty() else "plain")
    shows: dict[str, Show] = {"rich": _rich, "plain": _plain, "json": _json}
    if chosen not in shows:
        raise ConfigError(f"unknown display {chosen!r}; use {', '.join(shows)}")
    return shows[chosen]


def _rich(tables: Tables, notes: Sequence[str], _: dict[str, Any]) -> None:
    from poolbench_driver.cli.display import print_table

    for title, rows in tables:
        if rows:
            print_table(rows, list(rows[0]), title)
    typer.echo("\n".join(notes))


def _plain(tables: Tables, notes: Sequence[str], _: dict[str, Any]) -> None:
    """Print one line per row, with tabs between the fields."""
    for title, rows in tables:
        if rows:
            lines = ["\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows)]
            typer.echo("\n".join([f"# {title}", *lines]))
    typer.echo("\n".join(notes))


def _json(_: Tables, notes: Sequence[str], content: dict[str, Any]) -> None:
    typer.echo(json.dumps({**content, "notes": list(notes)}, indent=1))


COMMANDS = (reproduce,)
