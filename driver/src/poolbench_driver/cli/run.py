"""run: measure pooling strategies, and say what it came to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from poolbench.contracts.wire import Exit
from poolbench.statuses import RunState
from poolbench_driver.cli.runs import RunsFolder
from poolbench_driver.cli.suite_options import PRESET, help_rows, named_suite, reads, with_settings
from poolbench_driver.cli.tables import AsJson, print_data

if TYPE_CHECKING:
    from poolbench_driver.config import Assignment, RunConfig
    from poolbench_driver.estimate import ClusterSize
    from poolbench_driver.job import Job, Outcome
    from poolbench_driver.loop.progress import Display
    from poolbench_driver.records import Run


def show_outcome(outcome: Outcome) -> int:
    """Print what a run came to; return the exit code, which is 1 after failures or a cancellation."""
    if outcome.state == RunState.CANCELLED:
        return Exit.FAILURES
    if outcome.conclusion.shown:
        files = ", ".join(str(outcome.folder.file(name)) for name in outcome.conclusion.files)
        typer.echo(f"{outcome.conclusion.shown}: {files}" if files else outcome.conclusion.shown)
    typer.echo(f"{outcome.answer}\n\nreport: {outcome.report}\nresults digest: {outcome.digest}")
    if failures := outcome.failures:
        blocked = sum(failure.blocked for failure in failures)
        without = f", {blocked} more could not be tried without them" if blocked else ""
        where = outcome.folder.file("failures.parquet")
        typer.echo(f"{len(failures) - blocked} tasks failed{without}: {where}; the same command tries again", err=True)
    if outcome.empty:
        typer.echo(f"no figure could be computed: {outcome.empty}", err=True)
    if outcome.conclusion.wrong:
        suite = outcome.folder.config.suite
        typer.echo(f"not as the suite {suite} expects: {'; '.join(outcome.conclusion.wrong)}", err=True)
    return Exit.DONE if outcome.done else Exit.FAILURES


def _content(outcome: Outcome) -> dict[str, Any]:
    """Return what a run came to, as `--json` prints it."""
    return {
        "run": outcome.folder.id,
        "state": outcome.state,
        "folder": str(outcome.folder.path),
        "report": outcome.report and str(outcome.report),
        "results_digest": outcome.digest or None,
        "answer": outcome.answer.splitlines(),
        "failures": [asdict(failure) for failure in outcome.failures],
        "empty": outcome.empty or None,
        "not_as_expected": list(outcome.conclusion.wrong),
    }


_WHAT, _OF_CONCEPTS, _DRY_RUN = "What is measured", "Options of suites that read concepts", "Dry run"
_RUNNING = "Output and progress"
_what, _of_concepts, _dry_run_option = (
    partial(typer.Option, rich_help_panel=panel) for panel in (_WHAT, _OF_CONCEPTS, _DRY_RUN)
)
#: Options that stand for several settings.
_SHORTHANDS = ("scorers", "scorer_texts")


class RunCommand(TyperCommand):
    """`run`, with the other settings of the suite as further options: `--layer-choice nested` sets `layer_choice`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the arguments that are left, as typer does."""
        ctx.meta["suite"] = named_suite(args)
        return list(super().parse_args(ctx, self.with_settings(args)))

    def with_settings(self, args: list[str]) -> list[str]:
        """Return arguments with `--set` in place of the options that are settings of the suite."""
        options = {name for option in self.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
        if any(arg.startswith("--") and arg.partition("=")[0] not in options for arg in args):
            from poolbench_driver.config import DEFAULT_SUITE
            from poolbench_driver.contract.registry import SUITES

            return with_settings(args, SUITES.get(named_suite(args) or DEFAULT_SUITE).config, options)
        return args

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options in groups: those of the named suite, or how to see those of each."""
        from poolbench_driver.contract.registry import SUITES

        suite, suites = (SUITES.get(ctx.meta["suite"]), []) if ctx.meta["suite"] else (None, SUITES.all())
        groups: dict[str, list[Any]] = {}
        for param in self.get_params(ctx):
            groups.setdefault(getattr(param, "rich_help_panel", None) or _RUNNING, []).append(param)
        for group, params in groups.items():
            title, options = group, params
            rows = list[tuple[str, str]]()
            if suite is not None and group == _OF_CONCEPTS:
                title = f"Options of the suite {suite.id} (defaults: those of --preset {PRESET})"
                names = {param.opts[0]: param.get_help_record(ctx)[0] for param in params}
                rows = [*help_rows(suite, names, {name for param in self.params for name in param.opts} - set(names))]
                options = [param for param in params if param.name in _SHORTHANDS and reads(suite, "scorer_mode")]
            rows += [record for param in options if (record := param.get_help_record(ctx))]
            with formatter.section(title):
                formatter.write_dl(rows)
        if suites:
            with formatter.section("Suites (run --suite NAME --help shows their options)"):
                formatter.write_dl([(entry.id, entry.summary) for entry in suites])


def run(
    config: Annotated[
        Path | None, typer.Argument(help="YAML with the run's settings.", rich_help_panel="Arguments")
    ] = None,
    preset: Annotated[str | None, _what(help="demo (the default), small, card or full.")] = None,
    suite: Annotated[str | None, _what(help="What to measure; its settings are options too.")] = None,
    protocol: Annotated[str | None, _what(help="corrected; published adds the reference's own figures.")] = None,
    model: Annotated[
        str | None, _what(help="Preset id, folder or Hugging Face id; several with commas, for one board.")
    ] = None,
    activations: Annotated[str | None, _what(help="Measure imported activations of this name.")] = None,
    limit: Annotated[int | None, _what(help="At most this many passages per concept (train and test).")] = None,
    seed: Annotated[int | None, _what(help="Seed of folds, nulls, scorers and sampling.")] = None,
    sets: Annotated[
        list[str] | None,
        _what("--set", metavar="PATH=VALUE", help="Any setting, such as budget.max_tokens=100; repeatable."),
    ] = None,
    concepts: Annotated[str | None, _of_concepts(help="Comma-separated concept ids, or 'all'.")] = None,
    strategies: Annotated[str | None, _of_concepts(help="Comma-separated ids or boards; default: card.")] = None,
    layers: Annotated[
        str | None, _of_concepts(help="Comma-separated: block indices, depths such as .5, embedding, final.")
    ] = None,
    metrics: Annotated[str | None, _of_concepts(help="Comma-separated: d1,d2,d3.")] = None,
    corpus: Annotated[str | None, _of_concepts(help="planted, real, or a folder.")] = None,
    keep_activations: Annotated[
        bool, _of_concepts(help="Store the per-token hidden states too.", show_default=False)
    ] = False,
    scorers: Annotated[str | None, _of_concepts(help="bert (fine-tuned in full), published, or minilm.")] = None,
    scorer_texts: Annotated[
        str | None, _of_concepts(help="Texts to train scorers on, where the corpus has none: folder, real or planted.")
    ] = None,
    output: RunsFolder = Path("runs"),
    as_json: AsJson = False,
    display: Annotated[str | None, typer.Option(help="Of progress: rich, plain, json or none.")] = None,
    max_failures: Annotated[int | None, typer.Option(help="Stop after more failed tasks than this.")] = None,
    track: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Follow the run in mlflow, wandb or trackio; repeatable.")
    ] = None,
    detach: Annotated[
        bool, typer.Option(help="Run in the background; follow it with watch.", show_default=False)
    ] = False,
    dry_run: Annotated[
        bool, _dry_run_option(help="Say what would be done and what it costs, and stop.", show_default=False)
    ] = False,
    gpus: Annotated[int, _dry_run_option(help="GPUs of the cluster.")] = 0,
    price_per_gpu_hour: Annotated[float | None, _dry_run_option(help="Price of one GPU hour.")] = None,
    replicas: Annotated[str | None, _dry_run_option(help="Such as prober=8,scorer=2.")] = None,
) -> int:
    """Measure pooling strategies; the same command again continues a run."""
    from poolbench_driver.config import scorer_settings
    from poolbench_driver.contract.registry import SUITES

    if scorers and suite and not reads(SUITES.get(suite), "scorer_mode"):
        raise typer.BadParameter(f"--scorers {scorers}: the suite {suite} trains no scorers; leave the option out")
    flags: dict[str, Any] = {"protocol": protocol, "seed": seed, "limit": limit, "preset": preset}
    flags["suite"] = suite
    flags |= {"concepts": names_of(concepts), "strategies": names_of(strategies), "metrics": names_of(metrics)}
    passages = {"source": corpus or None, "scorer_texts": scorer_texts}
    flags |= {
        "layers": layers_of(layers),
        "corpus": {name: source for name, source in passages.items() if source} or None,
    }
    flags |= {"keep_activations": keep_activations or None, **scorer_settings(scorers)}
    configs, assignments = _configs(config, flags, _models(model), sets or [], activations)
    if dry_run:
        from poolbench_driver.cli.dry_run import cluster_of

        cluster = cluster_of(gpus, price_per_gpu_hour, replicas)
        return _dry_run(configs, cluster, assignments, display, as_json=as_json or display == "json")
    return _run(configs, output, display, max_failures, track or [], detach=detach, as_json=as_json)


def _dry_run(
    configs: list[RunConfig], cluster: ClusterSize, assignments: list[Assignment], display: str | None, *, as_json: bool
) -> int:
    from poolbench_driver.cli.dry_run import show_dry_run
    from poolbench_driver.loop.progress import open_display
    from poolbench_driver.series import prepare_dry

    open_display(display).close()  # a wrong name is refused, as for a run
    jobs, missing = prepare_dry(configs)
    return show_dry_run(jobs, cluster, assignments, missing, as_json=as_json)


def _run(
    configs: list[RunConfig],
    output: Path,
    display: str | None,
    max_failures: int | None,
    track: list[str],
    *,
    detach: bool,
    as_json: bool,
) -> int:
    from poolbench_driver.loop.progress import open_display
    from poolbench_driver.records.folder import create_run
    from poolbench_driver.series import prepare_all

    open_display(display)  # a wrong name is reported before the runs are planned
    jobs = prepare_all(configs, track=track)
    if detach:
        return _detach(create_run(output, jobs[0].config), num_later=len(jobs) - 1, as_json=as_json)
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        code, contents = show_all(jobs, output, partial(open_display, display), max_failures)
    if as_json:
        print_data(contents if len(jobs) > 1 else contents[0], contents)
    return code


def show_all(
    jobs: Sequence[Job], output: Path, open_display: Callable[[], Display], max_failures: int | None
) -> tuple[int, list[dict[str, Any]]]:
    """Run each job and print what it came to, then the board over several.

    Returns:
        The worst exit code, and what each run came to, as `--json` prints it.
    """
    from poolbench_driver.series import run_all

    codes, contents = list[int](), list[dict[str, Any]]()
    for outcome in run_all(jobs, output, open_display, max_failures):
        codes.append(show_outcome(outcome))
        contents.append(_content(outcome))
    if len(contents) < len(jobs):  # the others failed, or one was cancelled
        codes.append(Exit.FAILURES)
    if len(jobs) > 1 and RunState.CANCELLED not in {content["state"] for content in contents}:
        codes.append(_show_board(jobs, output))
    return max(codes), contents


def _show_board(jobs: Sequence[Job], output: Path) -> int:
    """Write and print the board of several runs; return the exit code, which is 1 if a model is missing from it."""
    from poolbench_driver.records import Run, run_id
    from poolbench_driver.series import BOARDS, SeriesBoard

    finished = list[Run]()
    for job in jobs:
        run = Run(output / run_id(job.config))
        if "results" in run.tables:
            finished.append(run)
        else:
            typer.echo(f"the board is without {job.config.model}: {run.id} has no results", err=True)
    if finished:
        board = SeriesBoard.of(finished)
        file = board.write(output / BOARDS)
        typer.echo(f"{board.shown()}\nboard: {file}")
    return Exit.DONE if len(finished) == len(jobs) else Exit.FAILURES


def names_of(text: str | None) -> list[str] | None:
    """Return names that a command takes with commas between them."""
    return [part.strip() for part in text.split(",") if part.strip()] if text else None


def _models(text: str | None) -> list[str]:
    """Return the models of a command, each once. A folder may have a comma in its name."""
    from poolbench.config import local_folder

    if text is None:
        return []
    return [text] if local_folder(text) is not None else list(dict.fromkeys(names_of(text) or []))


def _configs(
    config: Path | None, flags: Mapping[str, Any], models: list[str], sets: list[str], activations: str | None
) -> tuple[list[RunConfig], list[Assignment]]:
    """Return the settings of each model's run: the file's, overridden by an import's, by the flags, and by `--set`.

    The settings that `--set` named are returned too.
    """
    from poolbench.errors import ConfigError
    from poolbench_driver.config import read_assignments
    from poolbench_driver.contract import PRESET_OF_PRETRAINED
    from poolbench_driver.contract.load import default_preset, load_run_config

    if config is not None and flags.get("preset"):
        raise ConfigError(f"--preset and {config} both name settings to start from; write `preset: ...` in the file")
    assignments = read_assignments(sets)
    overrides = {name: value for name, value in flags.items() if value is not None}
    if models and any(assignment.path == "model" for assignment in assignments):
        raise typer.BadParameter("--model and --set model name two models; give one of them")
    if activations:
        if models or any(assignment.path == "model" for assignment in assignments):
            raise typer.BadParameter("--activations and --model name two models; give one")
        from poolbench_driver.cluster.session import open_session
        from poolbench_driver.imports.states import load_import

        imported = load_import(open_session().artifacts, activations)
        overrides = {**imported.settings(), **overrides}  # flags may still narrow them
    each_given = [{**overrides, "model": model} for model in models] or [overrides]
    if config is None and not any(assignment.path == "preset" for assignment in assignments):
        of_set = {assignment.path: assignment.value for assignment in assignments}
        presets = {default_preset({**flags, **of_set}) for flags in each_given}
        preset = presets.pop() if len(presets) == 1 else PRESET_OF_PRETRAINED  # a board has models with equal amounts
        each_given = [{"preset": preset, **flags} for flags in each_given]
    return [load_run_config(config, model_overrides, assignments) for model_overrides in each_given], assignments


def layers_of(text: str | None) -> list[int | float | str] | None:
    """Return layers that a command takes with commas between them. Raise BadParameter for what names none."""
    if text is None:
        return None
    names = ("embedding", "final")
    try:
        return [part if part in names else float(part) if "." in part else int(part) for part in names_of(text) or []]
    except ValueError:
        allowed = "block indices such as 2,4, depths such as .5,1.0, or " + " and ".join(names)
        raise typer.BadParameter(f"--layers {text}: use {allowed}") from None


def _detach(folder: Run, *, num_later: int, as_json: bool) -> int:
    """Start this command without --detach in a session of its own, which outlives the terminal."""
    from poolbench_driver.records.folder import write_state

    log = folder.file("driver.log")
    arguments = [argument for argument in sys.argv[1:] if argument != "--detach"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "poolbench_driver.cli", *arguments, "--display", "plain"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
    write_state(folder, RunState.STARTING, pid=process.pid)
    follow = f"poolbench-driver watch {folder.id} --output {folder.path.parent}"
    later = f", and {num_later} more models after it" if num_later else ""
    line = f"{folder.id} runs as process {process.pid}{later}; log in {log}; follow it: {follow}"
    if as_json:
        facts = {"run": folder.id, "state": RunState.STARTING, "folder": str(folder.path)}
        print_data({**facts, "pid": process.pid, "log": str(log)})
    typer.echo(line, err=as_json)
    return Exit.DONE
