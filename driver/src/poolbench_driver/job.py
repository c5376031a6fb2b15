"""A run from configuration to report: resolve names, plan, loop, assemble, write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from poolbench.contracts.tasks import Task
from poolbench.statuses import RunState
from poolbench.telemetry.ids import identified
from poolbench.telemetry.traces import start_tracing
from poolbench_driver.assemble import assemble, why_empty
from poolbench_driver.cluster.session import Session, open_session
from poolbench_driver.config import RunConfig
from poolbench_driver.contract.abilities import Concludes, Conclusion
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.estimate.amounts import ordered
from poolbench_driver.evidence import keep_texts
from poolbench_driver.loop import FoundDamageError, OutdatedPlanError, RunLoop, remaining
from poolbench_driver.loop.progress import Display, Recording
from poolbench_driver.models import ModelInfo
from poolbench_driver.pages.text import ending_of
from poolbench_driver.records import Run, recall_concepts
from poolbench_driver.records.folder import write_failures, write_manifest, write_model, write_table
from poolbench_driver.records.progress import FirstFigures
from poolbench_driver.records.writer import RunWriter
from poolbench_driver.report.making import page_of, write_page
from poolbench_driver.results import results_digest
from poolbench_driver.stages.failure import Failure
from poolbench_driver.stages.stage import Plan, committed_keys, first_notes
from poolbench_driver.trackers import Feed, TrackerKind

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Outcome:
    """The state of a run at its end, with its failures and tables."""

    folder: Run
    state: RunState
    failures: tuple[Failure, ...] = ()  # the tasks that failed
    tables: Mapping[str, pa.Table] = field(default_factory=dict)  # the tables by name; empty for a cancelled run
    empty: str = ""  # why no ranked figure has a value; "" if one has
    conclusion: Conclusion = field(default_factory=Conclusion)
    answer: str = ""  # the answer of the suite, in a few lines
    report: Path | None = None  # file of the report
    digest: str = ""  # hash of the results, without run id, times and memory

    @property
    def done(self) -> bool:
        """Return whether all tasks are done, some ranked figure has a value, and all expectations of the suite hold."""
        return self.state == RunState.DONE


@dataclass(frozen=True)
class Job:
    """A planned run on a cluster."""

    plan: Plan
    session: Session
    trackers: tuple[TrackerKind, ...] = ()

    @property
    def config(self) -> RunConfig:
        """Return the settings, with every name spelled out."""
        return self.plan.config

    def left(self) -> tuple[list[Task], set[str]]:
        """Return the tasks that are still to do, in the order of the plan, and the keys of all committed artifacts."""
        committed = committed_keys(self.session.artifacts)
        return remaining(self.plan, committed), committed

    def run(self, run: Run, display: Display, max_failures: int | None = None) -> Outcome:
        """Run to the report. Damaged artifacts are repaired. If damage makes the plan outdated, plan the run again.

        Raises:
            TooManyFailuresError, StoreError, BrokerError, DamagedError: As in `RunLoop.run`.
        """
        start_tracing("driver")
        with (
            identified(run_id=run.id),
            Feed(self.trackers, self.plan, run, display.note) as feed,
            RunWriter(self.session.artifacts.store, run, display.note, follow_state=feed.take_state) as writer,
        ):
            job = self
            try:
                while True:
                    attempt = _Attempt(job, run, writer, display, max_failures)
                    try:
                        tables = attempt.tables()
                        break
                    except OutdatedPlanError as error:
                        display.note(str(error))
                        job = prepare(self.config, self.session)
            finally:
                display.close()
            outcome = attempt.outcome(tables)
            feed.take_outcome(outcome.tables, outcome.report)
            return outcome


class _Attempt:
    """One plan of a run on its way to tables."""

    def __init__(self, job: Job, run: Run, writer: RunWriter, display: Display, max_failures: int | None) -> None:
        plan, session, self.note = ordered(job.plan), job.session, display.note
        self.plan, self.artifacts, self.folder, self.writer = plan, session.artifacts, run, writer
        write_model(run, plan.facts.model)
        writer.write_plan(plan.config, plan.keys)
        writer.write_state(RunState.RUNNING, tasks=len(plan.tasks))
        first_figures = FirstFigures(session.artifacts, SUITES.get(plan.config.suite).board.ranked)
        writer.follow(first_figures)
        recording = Recording(display, writer, len(plan.tasks), first_figures.add)
        for note in first_notes(plan.facts.notes):
            recording.note(note)
        self.loop = RunLoop(
            plan,
            session.artifacts,
            session.queue,
            session.leases,
            recording,
            max_failures=max_failures,
            cancelled=writer.cancelled,
            run_id=run.id,
        )

    def tables(self) -> dict[str, pa.Table] | None:
        """Work on the plan, and return the run's tables, or None if the run was cancelled."""
        try:
            failures = self.loop.run()
            while not self.loop.unfinished:
                self.writer.write_state(RunState.ASSEMBLING, **_counts(self.loop))
                try:
                    return assemble(self.plan, self.artifacts, failures, self.folder.id)
                except FoundDamageError as error:
                    failures = self.loop.repair(error.damages)
            return None
        except OutdatedPlanError:
            raise
        except BaseException as error:
            write_failures(self.folder, list(self.loop.failures.values()))
            interrupted = isinstance(error, KeyboardInterrupt)
            self.writer.write_state(RunState.INTERRUPTED if interrupted else RunState.STOPPED, **_counts(self.loop))
            raise

    def outcome(self, tables: Mapping[str, pa.Table] | None) -> Outcome:
        """Write the run's folder and record, and return the outcome of the run."""
        run, config, failures = self.folder, self.plan.config, tuple(self.loop.failures.values())
        if tables is None:
            self.writer.write_state(RunState.CANCELLED, **_counts(self.loop))
            return Outcome(run, RunState.CANCELLED, failures)
        info = SUITES.get(config.suite)
        suite = info.load()
        empty = why_empty(tables["results"], info.board.ranked)
        for name, table in tables.items():
            write_table(run, name, table)
        conclusion = suite.conclude(run) if isinstance(suite, Concludes) else Conclusion()
        for name, content in conclusion.files.items():
            run.file(name).write_text(json.dumps(content, indent=1), "utf-8")
        write_failures(run, list(failures))
        for note in keep_texts(self.plan, self.artifacts, tables, run):
            self.note(note)
        digest = results_digest(tables["results"])
        page = page_of(run)
        report = write_page(run, page)
        write_manifest(run, config_hash=config.config_hash(), results_digest=digest)
        self.writer.write_files()
        # Last: who reads that a run has ended finds all of it.
        state = RunState.FAILURES if failures or empty or conclusion.wrong else RunState.DONE
        self.writer.write_state(state, **_counts(self.loop), results_digest=digest)
        return Outcome(run, state, failures, tables, empty, conclusion, ending_of(page), report, digest)


def _counts(loop: RunLoop) -> dict[str, int]:
    total, failed = len(loop.plan.tasks), len(loop.failures)
    done = total - failed - len(loop.pending) - len(loop.in_flight)
    return {"tasks": total, "tasks_done": done, "failures": failed, "resent": loop.resent}


def prepare(config: RunConfig, session: Session, model: ModelInfo | None = None) -> Job:
    """Check every name of a configuration, and plan its run.

    Args:
        model: The model's properties. If None, they are looked up.

    Raises:
        UnknownNameError, LayerError: A name or layer is unknown. The message has the nearest valid names.
    """
    info = SUITES.get(config.suite)
    suite = info.load()
    plan = suite.plan(suite.resolve(config, session, model))
    if not isinstance(plan.config, info.config):
        raise TypeError(f"a plan of {info.id} needs {info.config.__name__} and has {type(plan.config).__name__}")
    return Job(plan, session)


def prepare_again(run: Run, session: Session | None = None) -> Job:
    """Plan a run as its folder says, with the concepts and the model that it measured.

    Raise PoolbenchError if no cluster is at hand, or the run cannot be planned here.
    """
    recall_concepts(run)
    return prepare(run.config, session or open_session(), run.model)
