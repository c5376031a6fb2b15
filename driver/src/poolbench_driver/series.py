"""The runs of one command: one for each model, in turn, and a board over all of them."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from poolbench.config import MODEL_PRESETS, resolve_model
from poolbench.contracts import Row
from poolbench.errors import ConfigError, PoolbenchError
from poolbench.statuses import RunState
from poolbench_corpora.io import write_at_once
from poolbench_driver.assemble import rank_rows
from poolbench_driver.cluster.session import Session, open_session
from poolbench_driver.comparison import join_rows, read_results
from poolbench_driver.config import RunConfig
from poolbench_driver.contract.abilities import JoinsRuns, ListsNeeds, Need, lines, require_all
from poolbench_driver.contract.page import Page, Part
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import BoardSpec, Suite
from poolbench_driver.doctor.finding import check_session
from poolbench_driver.imports.states import is_imported
from poolbench_driver.job import Job, Outcome, prepare
from poolbench_driver.loop.progress import Display
from poolbench_driver.models import obtain
from poolbench_driver.pages.boards.rank_parts import rank_parts
from poolbench_driver.pages.boards.ranks import build_ranks, ranked_metrics
from poolbench_driver.pages.plain import plain_page
from poolbench_driver.pages.text import markdown_of, parts_markdown
from poolbench_driver.records import NOTES, Run
from poolbench_driver.records.folder import create_run
from poolbench_driver.results import is_rank
from poolbench_driver.trackers import TRACKERS

#: Folder of the boards below the folder of the runs.
BOARDS = "boards"


def prepare_all(configs: Sequence[RunConfig], session: Session | None = None, track: Iterable[str] = ()) -> list[Job]:
    """Plan the runs of all models before any run starts, and check the cluster.

    Wrong names are reported first, then all missing things, then errors that only a plan can find, then faults of the
    cluster. With several models, an error names the model. Notes that stop no run are printed.

    Args:
        session: Connection to the cluster. None opens the default connection after the names are checked.
        track: Names of trackers that follow the runs.
    """
    trackers = tuple(map(TRACKERS.get, track))
    suites, needs = _checked(configs), list[Need]()
    session = session or open_session()
    for suite, config in zip(suites, configs, strict=True):
        if isinstance(suite, ListsNeeds):
            needs += suite.missing(config, session)
    for line in lines([need for need in needs if not need.stops]):
        _say(line)
    require_all(needs)
    for config in configs:
        obtain(config.model)
    jobs = [_named(partial(prepare, config, session), config, configs) for config in configs]
    for note in check_session(session):
        _say(note)
    return [replace(job, trackers=trackers) for job in jobs]


def prepare_dry(configs: Sequence[RunConfig], session: Session | None = None) -> tuple[list[Job], list[Need]]:
    """Plan each run so that its work can be counted, with stand-ins for what is missing. Return the jobs, and the needs
    that the cluster does not meet.

    Args:
        session: As for `prepare_all`.
    """
    suites, jobs, needs = _checked(configs), list[Job](), list[Need]()
    session = session or open_session()
    for suite, config in zip(suites, configs, strict=True):
        counted, model = config, None
        if isinstance(suite, ListsNeeds):
            counted, model, absent = suite.stand_ins(config, session)
            needs += [*suite.missing(config, session), *absent]
        job = _named(partial(prepare, counted, session, model), config, configs)
        settings = {name: getattr(config, name) for name, value in counted if value != getattr(config, name)}
        jobs.append(replace(job, plan=replace(job.plan, config=job.config.model_copy(update=settings))))
    return jobs, needs


def _checked(configs: Sequence[RunConfig]) -> list[Suite[Any, Any, Any]]:
    """Return the suite of each configuration. Raise UnknownNameError or ConfigError for errors visible without cluster.

    Presets of models are not looked up, because a preset may still have to be made.
    """
    suites = [SUITES.get(config.suite).load() for config in configs]
    for suite, config in zip(suites, configs, strict=True):
        suite.check(config)
    for config in configs:
        if config.model not in MODEL_PRESETS and not is_imported(config.model):
            resolve_model(config.model, revision=config.model_revision, dtype=config.dtype)
    _require_one_corpus(configs)  # after the models: a wrong name has another default corpus
    return suites


def _require_one_corpus(configs: Sequence[RunConfig]) -> None:
    """Raise ConfigError if models of one board would be measured on different data. Defaults depend on the model."""
    data = {config.model: config.data_name for config in configs}
    if len(set(data.values())) > 1:
        models = ", ".join(f"{model} on {name}" for model, name in data.items())
        raise ConfigError(f"one board needs one corpus, and these would be measured {models}: name one by --corpus")


def _named(planned: Callable[[], Job], config: RunConfig, configs: Sequence[RunConfig]) -> Job:
    try:
        return planned()
    except PoolbenchError as error:
        if len(configs) > 1:
            error.args = (f"{config.model}: {error}",)
        raise


def run_all(
    jobs: Sequence[Job], output: Path, open_display: Callable[[], Display], max_failures: int | None = None
) -> Iterator[Outcome]:
    """Run each job in turn, and yield its outcome. Repeating the call continues: complete runs send nothing.

    A job that fails does not stop the other jobs. A lost cluster, a cancellation and Ctrl-C stop all jobs.
    """
    for number, job in enumerate(jobs, start=1):
        run = create_run(output, job.config)
        if len(jobs) > 1:
            _say(f"model {number} of {len(jobs)}: {job.config.model}, run {run.id}")
        try:
            outcome = job.run(run, open_display(), max_failures)
        except PoolbenchError as error:
            if error.retryable or len(jobs) == 1:
                raise
            _say(f"error: {job.config.model}: {error}")
            continue
        yield outcome
        if outcome.state == RunState.CANCELLED:
            if len(jobs) > 1:
                _say(f"{run.id} was cancelled, so the models after it are not run; the same command continues")
            return


@dataclass(frozen=True)
class SeriesBoard:
    """The ranks over the runs of several models."""

    runs: list[dict[str, Any]]  # one entry per run: model, revision, layers, digest
    rows: list[dict[str, Any]]
    spec: BoardSpec  # what the runs' suite compares
    joined: Page | None = None  # what the suite itself says of them together

    @classmethod
    def of(cls, folders: Sequence[Run]) -> SeriesBoard:
        """Return the board over some runs. Raise ConfigError if their figures are not comparable."""
        rows_by_run = [read_results(folder) for folder in folders]
        suite, spec = folders[0].suite.load(), folders[0].suite.board
        runs = [
            {
                "run": folder.id,
                "model": rows[0]["model"],
                "revision": rows[0]["model_revision"],
                "layers": sorted(
                    {row["layer"] for row in rows if row["metric"] == spec.primary and row["layer"] is not None}
                ),
                "results_digest": folder.read_state().get("results_digest"),
            }
            for folder, rows in zip(folders, rows_by_run, strict=True)
        ]
        rows = join_rows(rows_by_run)
        joined = suite.joined(folders, _plain_page(folders, rows)) if isinstance(suite, JoinsRuns) else None
        return cls(runs, rows, spec, joined)

    @property
    def id(self) -> str:
        """Return a name for the board, which depends on its runs alone."""
        return "board-" + hashlib.sha256(json.dumps(sorted(run["run"] for run in self.runs)).encode()).hexdigest()[:8]

    def shown(self) -> str:
        """Return the suite's page of several runs as Markdown, or else the ranks on the suite's primary metric."""
        if self.joined is not None:
            return markdown_of(self.joined)
        return self.section(self.spec.primary) or f"nothing was ranked on {self.spec.primary}"

    def parts(self) -> list[Part]:
        """Return the content of `shown` as parts of a page, the board first."""
        if self.joined is None and self.spec.entrant == BoardSpec.entrant:
            return list(rank_parts(build_ranks(self.rows, self.spec.primary)))
        page = self.joined or plain_page("", "", _ranked_together(self.rows, self.spec), self.spec)
        return [Part("leaderboard", page.answer.text, [page.board]), *page.parts]

    def section(self, metric: str) -> str:
        """Return the ranks on one metric as Markdown. Strategies have ranks by family, concept family and model too."""
        if self.spec.entrant == BoardSpec.entrant:
            return "\n\n".join(parts_markdown(list(rank_parts(build_ranks(self.rows, metric)))))
        rows = _ranked_together(self.rows, replace(self.spec, ranked=(metric,)))
        return markdown_of(plain_page("", "", rows, self.spec)) if any(map(is_rank, rows)) else ""

    def write(self, folder: Path) -> Path:
        """Write the board as Markdown and JSON. Return the path of the Markdown file."""
        folder.mkdir(parents=True, exist_ok=True)
        metrics = ranked_metrics(self.rows)
        ranks = {metric: build_ranks(self.rows, metric).to_json() for metric in metrics}
        write_at_once(folder / f"{self.id}.json", json.dumps({"runs": self.runs, "ranks": ranks}, indent=1))
        parts = [f"# Ranks over {len(self.runs)} models", "\n".join(map(_line, self.runs)), *map(self.section, metrics)]
        file = folder / f"{self.id}.md"
        write_at_once(file, "\n\n".join(filter(None, parts)) + "\n")
        return file


def _plain_page(folders: Sequence[Run], rows: list[Row]) -> Page:
    """Return the page that the frame makes of several runs together."""
    suite = folders[0].suite
    models = ", ".join(dict.fromkeys(row["model"] for row in rows))
    notes = dict.fromkeys(row["note"] for folder in folders for row in folder.rows(NOTES))
    return plain_page(suite.title or suite.id, models, _ranked_together(rows, suite.board), suite.board, notes)


def _ranked_together(rows: Sequence[Row], spec: BoardSpec) -> list[Row]:
    """Return rows with ranks over all runs, in place of the ranks within each run."""
    measured = [row for row in rows if not is_rank(row)]
    return [*measured, *rank_rows(measured, spec)[0]]


def _line(run: dict[str, Any]) -> str:
    layers = ", ".join(map(str, run["layers"])) or "none"
    where = f"run {run['run']}, layers {layers}, results digest {run['results_digest']}"
    return f"- {run['model']} at {run['revision']}: {where}"


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
