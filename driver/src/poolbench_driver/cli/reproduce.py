"""reproduce: compare a run with a published table, as `compare RUN official:MODEL`; without a run, make it first."""

from __future__ import annotations

import shlex
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poolbench.contracts.wire import Exit
from poolbench.errors import ConfigError
from poolbench_driver.cli.runs import RunsFolder, show_comparison
from poolbench_driver.cli.tables import AsJson, Show, show_tables

if TYPE_CHECKING:
    from poolbench.settings import ClusterSettings
    from poolbench_driver.config import ConceptsConfig
    from poolbench_driver.contract.abilities import Need, RepeatsPublished
    from poolbench_driver.contract.published import PublishedModel, PublishedTable
    from poolbench_driver.records import Run


def num_steered_texts(config: ConceptsConfig) -> int:
    """Return the number of texts that a run steers along strategies. Texts of null directions come on top."""
    if not {"d2", "d3"} & set(config.metrics):
        return 0
    strategies = config.strategies or ()
    return len(config.concepts) * len(strategies) * len(config.budget.strengths) * config.budget.num_openings


_TABLE, _CORPUS = "official", "corpora/published"


def reproduce(
    table: Annotated[str, typer.Option(help="The table: official, or a folder of the same format.")] = _TABLE,
    model: Annotated[str | None, typer.Option(help="A model of the table; default: the run's.")] = None,
    run: Annotated[
        str | None, typer.Option(help="Run id, 'latest', or a run's folder; default: the newest of the model.")
    ] = None,
    output: RunsFolder = Path("runs"),
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="<str>", help="Only this column of the table; may be given several times."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also the cells without a counterpart.")] = False,
    as_json: AsJson = False,
    display: Annotated[str | None, typer.Option(help="rich or plain.")] = None,
    settings: Annotated[
        Path | None, typer.Option(help="Write the settings of the run that repeats the table to this file.")
    ] = None,
    corpus: Annotated[str, typer.Option(help="Passages of the run: folder, real or planted.")] = _CORPUS,
    scorers: Annotated[str | None, typer.Option(help="Of the run: bert (the table's), published, or minilm.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Any setting of the run, such as limit=60; repeatable."),
    ] = None,
    start: Annotated[
        bool,
        typer.Option("--start", help="Run the cells even if a run of the model is there."),
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="Say what the run of the cells needs, and stop.")] = False,
) -> int:
    """Set the cells of a published table beside a run's: theirs, ours, difference and interval.

    Without a finished run of the model, the run of the table's cells is made first.
    """
    from poolbench_driver.comparison.published import compare_with_table, suite_of_table

    show = show_tables("json" if as_json else display)
    suite = suite_of_table(table)
    published = suite.published_table(table)
    published.require_columns(column or [])
    changed = bool(start or dry_run or scorers or sets)
    if run is not None and changed:
        raise ConfigError("--run compares a finished run; --start, --dry-run, --scorers and --set are for a new one")
    if settings is not None:
        _write_settings(suite, published, model, corpus, settings, sets)
    folder, code = None if changed else _run_of(published, model, run, output), int(Exit.DONE)
    if folder is None:
        cells = _cells(table, model, corpus, scorers, sets)
        if dry_run or settings or any(need.stops and not need.found for need in cells.needs):
            _show_needs(cells, settings, output, show, dry=dry_run)
            return Exit.DONE if dry_run else Exit.FAILURES
        for line in cells.left_out:
            typer.echo(line, err=True)
        folder, code = _run_cells(cells.config, output, display)
    comparison = compare_with_table(folder, suite, published, model, columns=column or [])
    show_comparison(comparison, show, everything=everything)
    return max(code, Exit.DONE if comparison.compared else Exit.FAILURES)


def _run_of(table: PublishedTable, model: str | None, run: str | None, output: Path) -> Run | None:
    """Return the run to compare: the named one, or the newest of the model; None if there is none of the model."""
    from poolbench_driver.records import Runs, find_run

    if run is not None:
        return find_run(output, run)
    if model is None:
        raise ConfigError(f"give --model ({_models(table)}) or --run")
    official_model = table.model(model)
    for folder in Runs(output).all():
        if folder.file("results.parquet").is_file() and _is_of(table, folder, official_model):
            return folder
    return None


def _is_of(table: PublishedTable, folder: Run, official_model: PublishedModel) -> bool:
    try:
        return table.model(folder.config.model) == official_model
    except ConfigError:  # another model, or settings of another version
        return False


def _models(table: PublishedTable) -> str:
    return ", ".join(model.preset for model in table.models)


@dataclass(frozen=True)
class _Cells:
    """The run that makes the cells of a model, without those that would be null."""

    model: PublishedModel
    config: ConceptsConfig
    options: list[str]  # of the command that makes it
    needs: list[Need]
    left_out: list[str]  # metrics that would be null, with the reason


def _cells(table: str, name: str | None, corpus: str, scorers: str | None, sets: list[str] | None) -> _Cells:
    from poolbench_driver.comparison.published import suite_of_table
    from poolbench_driver.config import of_concepts, read_assignments, scorer_settings
    from poolbench_driver.contract.load import load_run_config

    suite = suite_of_table(table)
    published = suite.published_table(table)
    if name is None:
        raise ConfigError(f"give --model ({_models(published)})")
    model = published.model(name)
    settings = {**suite.settings_of_run(published, model, corpus), **scorer_settings(scorers)}
    config = of_concepts(load_run_config(None, settings, read_assignments(sets or [])))
    options = ["--table", table] if table != _TABLE else []
    options += ["--model", model.preset, *(["--corpus", corpus] if corpus != _CORPUS else [])]
    options += ["--scorers", scorers] if scorers else []
    options += [part for setting in sets or [] for part in ("--set", setting)]
    cluster = _cluster()
    needs = suite.needs(config, cluster)
    nulls = [need for need in needs if need.nulls and not need.found]
    left = [metric for metric in config.metrics if not any(metric in need.nulls for need in nulls)]
    if nulls and left:
        config = config.model_copy(update={"metrics": tuple(left)})
        needs = suite.needs(config, cluster)
    return _Cells(model, config, options, needs, [f"left out, {', '.join(n.nulls)}: no {n}" for n in nulls])


def _cluster() -> ClusterSettings | None:
    from poolbench.settings import ClusterSettings

    try:
        return ClusterSettings.load()
    except ConfigError:
        return None


def _run_cells(config: ConceptsConfig, output: Path, display: str | None) -> tuple[Run, int]:
    """Run what is not computed yet; return the run and its exit code. What it prints goes to stderr."""
    from poolbench_driver.cli.run import show_outcome
    from poolbench_driver.loop.progress import open_display
    from poolbench_driver.series import prepare_all, run_all

    jobs = prepare_all([config])
    with redirect_stdout(sys.stderr):
        outcome = next(run_all(jobs, output, partial(open_display, display)))
        code = show_outcome(outcome)
    if "results" not in outcome.folder.tables:
        raise ConfigError(f"{outcome.folder.id} was cancelled before it had results; the same command continues it")
    return outcome.folder, code


def _show_needs(cells: _Cells, settings: Path | None, output: Path, show: Show, *, dry: bool) -> None:
    """Print what the run of a published table needs, and the command that starts it. Nothing is started."""

    model, texts = cells.model.preset, num_steered_texts(cells.config)
    again = shlex.join(["poolbench-driver", "reproduce", *cells.options])
    run = [f"poolbench-driver run {settings}{end}" for end in (" --dry-run", "")] if settings else []
    commands = [*run, *([f"poolbench-driver reproduce --model {model}"] if settings else [again])]
    state = "dry run" if dry else f"no finished run of {model} in {output}"
    amount = f"steers {texts:,} texts along strategies, and more along null directions" if texts else "steers nothing"
    size = f"{len(cells.config.strategies or ())} strategies, {len(cells.config.concepts)} concepts"
    lines = [f"{state}: nothing to compare, and nothing was started", f"the run of {size} {amount}", *cells.left_out]
    rows = [{"needed": n.what, "found": "yes" if n.found else "no", "else": n.instead} for n in cells.needs]
    content = {"needs": [asdict(n) for n in cells.needs], "commands": commands}
    show([("what the run needs", rows)], [*lines, *(f"then: {command}" for command in commands)], content)


def _write_settings(
    suite: RepeatsPublished, table: PublishedTable, model: str | None, corpus: str, file: Path, sets: list[str] | None
) -> None:
    import yaml

    if model is None:
        raise ConfigError(f"--settings needs --model ({_models(table)})")
    if sets:
        raise ConfigError("--settings writes the settings of the table; change them in the file instead of by --set")
    text = yaml.safe_dump(suite.settings_of_run(table, table.model(model), corpus), sort_keys=False)
    file.write_text(f"# The run that repeats {table.source['title']}.\n{text}", "utf-8")
