"""Commands on runs: report, leaderboard, compare, ranks; and watch, cancel, wherever their driver works."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poolbench.contracts.wire import Exit
from poolbench.errors import ConfigError, NotFoundError, PoolbenchError, UnknownNameError
from poolbench.statuses import RunState
from poolbench_driver.cli.tables import AsJson, Show, print_data, print_table, show_tables
from poolbench_driver.waiting import about

if TYPE_CHECKING:
    from poolbench_driver.api.loading import Leaderboard
    from poolbench_driver.comparison.published import TableComparison
    from poolbench_driver.contract.abilities import Recorded
    from poolbench_driver.contract.suite import FinishedRun
    from poolbench_driver.records import Run, Runs

RunsFolder = Annotated[Path, typer.Option(help="Folder that runs lie in.")]
RunName = Annotated[str, typer.Argument(help="Run id, or 'latest'.")]


def report(name: RunName = "latest", output: RunsFolder = Path("runs")) -> None:
    """Write the report of a run again from its tables."""
    from poolbench_driver.records import find_run
    from poolbench_driver.report.making import write_report

    typer.echo(str(write_report(find_run(output, name))))


def leaderboard(
    names: Annotated[
        list[str] | None, typer.Argument(help="Run ids or 'latest'; several runs of one suite share a board.")
    ] = None,
    output: RunsFolder = Path("runs"),
    suite: Annotated[str | None, typer.Option(help="Suite that reads --table; by default that of the runs.")] = None,
    table: Annotated[
        Path | None, typer.Option(help="File or folder that others recorded: its board, without a cluster or a run.")
    ] = None,
    join: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN|FILE",
            help="Rank this run, or a result file of the reference's tool, among the models of --table; repeatable.",
        ),
    ] = None,
    beside: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV file with a column 'model' and scores in other benchmarks: show the correlation with the board.",
        ),
    ] = None,
    as_json: AsJson = False,
    power: Annotated[
        bool,
        typer.Option(
            "--power",
            help="Whether the data would find a difference of neighbours on the board, and how many concepts, sets or "
            "items would.",
        ),
    ] = False,
    difference: Annotated[
        float | None,
        typer.Option(help="Difference of the board's primary metric that --power is of; by default the suite's."),
    ] = None,
) -> None:
    """Print the leaderboard and the other tables of runs as Markdown, or the board of a recorded table.

    `leaderboard build FOLDER... --output DIR` writes a board of bundles; `leaderboard build -h` has its options.
    """
    from poolbench_driver.api import loading
    from poolbench_driver.records import find_runs

    if suite is not None and table is None:
        raise ConfigError("--suite names what reads a recorded table: give --table too, or leave it out")
    if power and table is not None:
        raise ConfigError("--power compares the entrants of runs: leave out --table")
    if difference is not None and not power:
        raise ConfigError("--difference is what --power is of: give --power too")
    if join and table is None:
        raise ConfigError("--join ranks a run among recorded models: give their --table")
    if beside is not None and (power or join or (names and table)):
        raise ConfigError("--beside compares one board, of runs or of --table: leave out --power, --join or the other")
    run_names = names or ([] if table else ["latest"])
    board = loading.leaderboard(*run_names, output=output) if run_names else None
    if power and board is not None:
        _show_power(board, difference, as_json=as_json)
        return
    if beside is not None:
        _show_beside(board.runs if board else (), table, suite, beside, as_json=as_json)
        return
    files = [Path(name) for name in join or () if Path(name).is_file()]
    joined_runs = find_runs(output, (name for name in join or () if not Path(name).is_file()))
    joined: list[FinishedRun | Path] = [*files, *joined_runs]
    recorded = None if table is None else _recorded(table, suite, board.runs if board else (), joined)
    if as_json:
        for note in recorded.notes if recorded else ():
            typer.echo(f"note: {note}", err=True)
        print_data(_content(board, recorded))
    else:
        typer.echo("\n\n".join(one.markdown for one in (board, recorded) if one is not None))


def _recorded(table: Path, suite: str | None, folders: Sequence[Run], joined: Sequence[FinishedRun | Path]) -> Recorded:
    """Return the board of a recorded table, read by the suite that is named, or else by that of the first run."""
    from poolbench_driver.contract.abilities import JoinsRecorded, ReadsRecorded
    from poolbench_driver.contract.registry import SUITES

    suites = [folder.config.suite for folder in folders]
    suites += [origin.config.suite for origin in joined if not isinstance(origin, Path)]
    if suite is None and not suites:
        raise ConfigError("--table needs a suite that reads it: give --suite, such as holmes")
    info = SUITES.get(suite or suites[0])
    reader = info.load()
    if joined:
        if not isinstance(reader, JoinsRecorded):
            raise ConfigError(f"the suite {info.id!r} joins no runs with recorded tables; leave out --join")
        return reader.among_recorded(table, joined)
    if not isinstance(reader, ReadsRecorded):
        raise ConfigError(f"the suite {info.id!r} does not read recorded tables; leave out --table")
    return reader.recorded(table)


def _show_beside(runs: Sequence[Run], table: Path | None, suite: str | None, others: Path, *, as_json: bool) -> None:
    """Print how far a board, of runs or of a recorded table, orders models as other benchmarks do."""
    from pydantic import TypeAdapter

    from poolbench_driver.contract.abilities import ReadsOtherBenchmarks
    from poolbench_driver.contract.page import Part
    from poolbench_driver.contract.registry import SUITES
    from poolbench_driver.pages.text import parts_markdown

    if not runs and suite is None:
        raise ConfigError("--table needs a suite that reads it: give --suite, such as holmes")
    info = SUITES.get(suite or runs[0].config.suite)
    reader = info.load()
    if not isinstance(reader, ReadsOtherBenchmarks):
        raise ConfigError(f"the suite {info.id!r} compares its board with no other benchmark; leave out --beside")
    part = reader.beside(runs if table is None else table, others)
    if as_json:
        print_data(TypeAdapter(Part).dump_python(part, mode="json"))
    else:
        typer.echo("\n\n".join(parts_markdown([part])))


def _show_power(board: Leaderboard, difference: float | None, *, as_json: bool) -> None:
    """Print whether the data of runs would find a difference of neighbours on their board."""
    from poolbench_driver.comparison import join_rows, read_results
    from poolbench_driver.pages.boards.power import neighbours, power_table, sentence
    from poolbench_driver.pages.text import block_markdown

    rows_by_run = [read_results(run) for run in board.runs]
    if len(rows_by_run) > 1:
        join_rows(rows_by_run)  # refuses what cannot be compared
    suite = board.runs[0].suite
    if not suite.board.competing:
        typer.echo(f"note: entrants of {suite.id} are comparisons; their power stands on the board", err=True)
        print_data(board.to_pylist()) if as_json else typer.echo(board.markdown)
        return
    pairs = neighbours(suite, board.runs, planned=difference)
    if not pairs:
        spec = suite.board
        raise ConfigError(
            f"no {spec.unit} has two entrants with a value of {spec.primary}: measure two or more to compare"
        )
    if as_json:
        print_data([asdict(pair) for pair in pairs])
    else:
        typer.echo("\n\n".join([sentence(pairs[0]), *block_markdown(power_table(pairs))]))


def _content(board: Leaderboard | None, recorded: Recorded | None) -> Any:
    """Return the lines of the board of runs or of the recorded one; of both, each under its name."""
    figures = None if board is None else board.to_pylist()
    if recorded is None or figures is None:
        return figures if recorded is None else recorded.rows
    return {"runs": figures, "recorded": recorded.rows}


FORMATS = ("table", "markdown", "json")


def compare(
    first: Annotated[str, typer.Argument(help="Run id, 'latest', or a run's folder.")],
    second: Annotated[
        str, typer.Argument(help="Another, or official:MODEL of a published table; differences are second minus first.")
    ],
    output: RunsFolder = Path("runs"),
    metric: Annotated[
        list[str] | None, typer.Option(metavar="<str>", help="Only this metric; may be given several times.")
    ] = None,
    across: Annotated[
        str | None, typer.Option(help="Comma-separated: model, data, versions. Pair cells although these differ.")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="table, markdown, or json, which is --json.")] = "table",
    as_json: AsJson = False,
    everything: Annotated[bool, typer.Option("--all", help="All changes, and what stayed the same.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit code 1 when any cell differs.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the resamples.")] = 0,
) -> int:
    """Tell what changed between two runs, paired by cell, with intervals over concepts.

    With `official:MODEL`, set the figures of a published table beside those of a run: theirs, ours, difference (ours
    minus theirs) and interval, as `reproduce` does.
    """
    if form not in FORMATS:
        raise UnknownNameError("format", form, FORMATS)
    from poolbench_driver.api import loading
    from poolbench_driver.comparison import as_markdown, as_tables
    from poolbench_driver.contract.registry import SUITES
    from poolbench_driver.records import find_run

    names = [part.strip() for part in across.split(",") if part.strip()] if across else []
    table, _, model = second.partition(":")
    if model and any(table in info.published_tables for info in SUITES.all()):
        if names or seed:
            raise ConfigError(f"--across and --seed are for two runs; leave them out with {second}")
        form = "json" if as_json else form
        return _compare_with_table(find_run(output, first), table, model, metric or [], form, everything, check=check)
    comparison = loading.compare(first, second, output=output, across=names, metrics=metric or None, seed=seed)
    tables = as_tables(comparison.changes, everything=everything)
    if as_json or form == "json":
        print_data(comparison.to_dict(), comparison.changes.values)
    elif form == "markdown":
        typer.echo(as_markdown(tables, comparison.sentence))
    else:
        typer.echo(comparison.sentence)
        for title, columns, lines in tables:
            print_table(lines, columns, title)
    return Exit.FAILURES if check and comparison.changes.changed() else Exit.DONE


def _compare_with_table(
    folder: Run, table: str, model: str, metrics: list[str], form: str, everything: bool, *, check: bool
) -> int:
    """Show the figures of a published table beside those of a run."""
    from poolbench_driver.comparison import as_markdown
    from poolbench_driver.comparison.published import compare_with_table, suite_of_table

    suite = suite_of_table(table)
    comparison = compare_with_table(folder, suite, suite.published_table(table), model, metrics=metrics)
    if form == "markdown":
        typer.echo(as_markdown(comparison.tables(everything=everything), comparison.sentence))
    else:
        show_comparison(comparison, show_tables("json" if form == "json" else None), everything=everything)
    return Exit.FAILURES if not comparison.compared or (check and comparison.changed()) else Exit.DONE


def show_comparison(comparison: TableComparison, show: Show, *, everything: bool) -> None:
    """Show the figures of a published table beside ours, then what is compared and how the run differs."""
    tables = [(title, rows) for title, _, rows in comparison.tables(everything=everything)]
    content = comparison.to_dict()
    show(tables, content.pop("notes"), content)


def ranks(
    names: Annotated[
        list[str] | None, typer.Argument(help="Runs of one budget and corpus, e.g. of several models; default: latest.")
    ] = None,
    output: RunsFolder = Path("runs"),
    metric: Annotated[str | None, typer.Option(help="A ranked metric; default: what the suite shows first.")] = None,
    as_json: AsJson = False,
) -> int:
    """Rank the strategies over one or more runs, as Markdown: overall, by family, concept family and model."""
    from poolbench_driver.api import loading
    from poolbench_driver.pages.boards.rank_parts import rank_parts
    from poolbench_driver.pages.text import parts_markdown

    view = loading.ranks(*(names or ()), metric=metric, output=output).view
    if as_json:
        print_data(view.to_json(), view.standings)
    else:
        typer.echo("\n\n".join(parts_markdown(list(rank_parts(view)))))
    return Exit.DONE


def watch(
    name: RunName = "latest",
    output: RunsFolder = Path("runs"),
    interval_s: Annotated[float, typer.Option(help="Seconds between two looks.")] = 2.0,
    as_json: AsJson = False,
) -> int:
    """Follow a run of any machine until it ends; exit code 0 when it ended without failures."""
    runs = _runs(output, name)
    run, last = runs.find(name), dict[str, Any]()
    while True:
        state = run.read_state()
        facts = {"run": run.id, "state": state.get("state", "unknown")}
        facts |= {count: state.get(count) for count in ("tasks_done", "tasks", "failures")}
        if facts != last:
            last, remaining_s = facts, _left_s(runs, run)
            if as_json:
                print_data({**facts, "left_s": remaining_s}, in_one_line=True)
            else:
                left = f"; {about(remaining_s)} left" if remaining_s else ""
                counts = f"{facts['tasks_done'] or 0}/{facts['tasks'] or '?'} tasks, {facts['failures'] or 0} failures"
                typer.echo(f"{facts['state']}: {counts}{left}")
        if not run.unfinished:
            return _show_end(run, state)
        time.sleep(interval_s)
        run = _again(runs, run)


def _left_s(runs: Runs, run: Run) -> float | None:
    """Return the seconds to the end as the driver published what its stages have done; None where that says nothing."""
    try:
        progress = runs.records.progress(run.id) if runs.records and run.unfinished else None
    except PoolbenchError:
        return None
    return None if progress is None else progress.left_s


def cancel(name: RunName = "latest", output: RunsFolder = Path("runs")) -> int:
    """Ask the driver of a run on any machine to stop; finished work is kept, and what is in work is dropped."""
    from poolbench_driver.records import open_runs

    runs = open_runs(output)
    run = runs.find(name)
    state = run.read_state().get("state", "unknown")
    if state == RunState.STARTING:
        typer.echo(f"{run.id} is starting; cancel it when `poolbench-driver watch` shows it running", err=True)
        return Exit.FAILURES
    if not run.unfinished or runs.records is None:
        typer.echo(f"{run.id} does not run (state: {state})", err=True)
        return Exit.FAILURES
    runs.records.cancel(run.id)
    typer.echo(f"{run.id} stops within a few seconds; the same run command continues it", err=True)
    return Exit.DONE


def _runs(output: Path, name: str) -> Runs:
    """Return the runs here and in the store; those here alone if there is no store and they have the one asked for."""
    from poolbench_driver.records import Runs, open_runs

    try:
        runs = open_runs(output)
        runs.find(name)
        return runs
    except NotFoundError:
        raise
    except PoolbenchError as error:
        here = Runs(output)
        try:
            here.find(name)
        except NotFoundError:
            raise error from None
        typer.echo(f"note: only the folder of the run is read: {error}", err=True)
        return here


def _again(runs: Runs, run: Run) -> Run:
    """Look at a run again; a store that is away for some time is waited for."""
    try:
        return runs.look_again(run)
    except PoolbenchError as error:
        if not error.retryable:
            raise
        return run


def _show_end(run: Run, state: dict[str, Any]) -> int:
    log = run.file("driver.log")
    if state.get("state") == RunState.DIED:
        where = f"; {log} says why" if log.is_file() else ""
        typer.echo(f"the driver of {run.id} is gone{where}; the same run command continues it", err=True)
    elif state.get("state") in (RunState.DONE, RunState.FAILURES):
        remote_report = f"{state.get('folder', '?')}/report/index.html on {state.get('host', 'another machine')}"
        report = run.file("report") / "index.html" if run.is_here else remote_report
        typer.echo(f"report: {report}", err=True)
    return Exit.DONE if state.get("state") == RunState.DONE else Exit.FAILURES
