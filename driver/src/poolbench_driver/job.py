"""A run from configuration to report: resolve names, plan, loop, assemble, write."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poolbench.concepts import CONCEPTS
from poolbench.config import RunConfig
from poolbench.contracts.results import results_digest
from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import Exit
from poolbench.pooling.registry import StrategySpec
from poolbench.statuses import RunState
from poolbench.telemetry.ids import identified
from poolbench.telemetry.traces import start_tracing
from poolbench_driver.assemble import assemble, why_empty
from poolbench_driver.cluster.session import Session
from poolbench_driver.corpora.sources import absent_concepts, require_one_kind
from poolbench_driver.estimate.order import chains_of
from poolbench_driver.imports.record import imported_model, is_imported
from poolbench_driver.imports.saes import sae_inputs
from poolbench_driver.models import ModelInfo, annotator_version, describe_model, obtain
from poolbench_driver.plan import PoolBenchPlan, Scope, make_plan
from poolbench_driver.plan.scope import left_out, neighbours_of, resolve_names
from poolbench_driver.records import Publisher
from poolbench_driver.report import write_page
from poolbench_driver.report.answer import summary
from poolbench_driver.report.views import build_view
from poolbench_driver.run import FoundDamageError, OutdatedPlanError, RunLoop, committed_keys, remaining
from poolbench_driver.run.erasure import Erasure
from poolbench_driver.run.progress import Display
from poolbench_driver.run.recording import Recording
from poolbench_driver.rundir import RunFolder
from poolbench_driver.suites import suite_of

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Job:
    """A planned run on a cluster."""

    config: RunConfig
    plan: PoolBenchPlan
    session: Session
    left_out: str = ""

    def left(self) -> tuple[list[Task], set[str]]:
        """Return the tasks that are still to do, in sending order, and the keys of all committed artifacts."""
        committed = committed_keys(self.session.artifacts)
        committed -= Erasure(self.plan, self.session.artifacts).needed_again(committed)
        return remaining(self.plan, committed), committed

    def run(self, folder: RunFolder, display: Display, max_failures: int | None) -> int:
        """Run to the report, repairing damaged artifacts; return 1 after failures or a cancellation."""
        start_tracing("driver")
        with identified(run_id=folder.id):
            return self._run(folder, display, max_failures)

    def _run(self, folder: RunFolder, display: Display, max_failures: int | None) -> int:
        with Publisher(self.session.artifacts.store, folder, display.note) as publisher:
            try:
                job, loop, tables = self._measure(folder, publisher, display, max_failures)
            finally:
                display.close()
            if tables is None:
                publisher.write_state(RunState.CANCELLED, **_counts(loop))
                return Exit.FAILURES
            return job._finish(folder, publisher, loop, tables)

    def _measure(
        self, folder: RunFolder, publisher: Publisher, display: Display, max_failures: int | None
    ) -> tuple[Job, RunLoop, dict[str, pa.Table] | None]:
        """Return the job, its loop and its tables (None if cancelled); plan again if damage made the plan outdated."""
        publisher.publish_plan(self.config, self.plan.keys)
        publisher.write_state(RunState.RUNNING, tasks=len(self.plan.tasks))
        if self.left_out:
            display.note(self.left_out)
        loop = RunLoop(
            self.plan,
            self.session.artifacts,
            self.session.queue,
            self.session.leases,
            Recording(display, publisher.write_state, len(self.plan.tasks)),
            max_failures=max_failures,
            cancelled=publisher.cancelled,
            run_id=folder.id,
            chains=chains_of(self.plan),
        )
        try:
            return self, loop, self._run_and_assemble(folder, publisher, loop)
        except OutdatedPlanError as error:
            display.note(str(error))
            return prepare(self.config, self.session)._measure(folder, publisher, display, max_failures)
        except BaseException as error:
            folder.write_failures(list(loop.failures.values()))
            interrupted = isinstance(error, KeyboardInterrupt)
            publisher.write_state(RunState.INTERRUPTED if interrupted else RunState.STOPPED, **_counts(loop))
            raise

    def _run_and_assemble(self, folder: RunFolder, publisher: Publisher, loop: RunLoop) -> dict[str, pa.Table] | None:
        """Return the run's tables; None where it was cancelled."""
        failures = loop.run()
        while not loop.unfinished:
            publisher.write_state(RunState.ASSEMBLING, **_counts(loop))
            try:
                return assemble(self.plan, self.session.artifacts, failures, folder.id)
            except FoundDamageError as error:
                failures = loop.repair(error.damages)
        return None

    def _finish(self, folder: RunFolder, publisher: Publisher, loop: RunLoop, tables: Mapping[str, pa.Table]) -> int:
        failures, empty = list(loop.failures.values()), why_empty(tables["results"])
        wrong = suite_of(self.config.suite).conclude(self.config, folder, tables)
        for name, table in tables.items():
            folder.write_table(name, table)
        folder.write_failures(failures)
        digest = results_digest(tables["results"])
        state = RunState.FAILURES if failures or empty or wrong else RunState.DONE
        publisher.write_state(state, **_counts(loop), results_digest=digest)
        view = build_view(folder)
        report = write_page(folder, view)
        folder.write_manifest(config_hash=self.config.config_hash(), results_digest=digest)
        publisher.publish_files()
        print(f"{summary(view)}\n\nreport: {report}\nresults digest: {digest}")
        if failures:
            blocked = sum(failure.blocked for failure in failures)
            without = f", {blocked} more could not be tried without them" if blocked else ""
            where = folder.file("failures.parquet")
            print(f"{len(failures) - blocked} tasks failed{without}: {where}; the same command tries again")
        if empty:
            print(f"no figure could be computed: {empty}", file=sys.stderr)
        if wrong:
            print(f"not as the suite {self.config.suite} expects: {wrong}", file=sys.stderr)
        return Exit.FAILURES if failures or empty or wrong else Exit.DONE


def _counts(loop: RunLoop) -> dict[str, int]:
    total, failed = len(loop.plan.tasks), len(loop.failures)
    done = total - failed - len(loop.pending) - len(loop.in_flight)
    return {"tasks": total, "tasks_done": done, "failures": failed, "resent": loop.resent}


def prepare(config: RunConfig, session: Session, model: ModelInfo | None = None) -> Job:
    """Check every name of a configuration and plan it.

    Args:
        model: The model's properties; None asks for them.

    Raises:
        UnknownNameError, LayerError: With the nearest valid names.
        RestrictedError: It has a sensitive concept, and this process has no access to restricted artifacts.
    """
    if is_imported(config.model) and "metrics" not in config.model_fields_set:
        config = config.model_copy(update={"metrics": ("d1",)})  # all that can be measured without the model
    suite = suite_of(config.suite)
    if suite.register is not None:
        suite.register(config, session.artifacts.store)
    resolved, strategies = resolve_names(config)
    plan = _planned(resolved, strategies, session, model)
    if plan.restricted:
        session.artifacts.require_restricted()
    named = "" if config.strategies is not None else left_out(strategies)
    return Job(resolved, plan, session, named)


def _planned(
    config: RunConfig, strategies: Sequence[StrategySpec], session: Session, model: ModelInfo | None
) -> PoolBenchPlan:
    if is_imported(config.model):
        model = imported_model(config, session.artifacts)
    elif model is None:
        obtain(config.model)
        model = describe_model(config, session.services)
    concepts = [CONCEPTS.get(name) for name in config.concepts]
    require_one_kind(config, concepts)
    scope = Scope(
        config,
        model,
        tuple(strategies),
        annotator_version(config.annotator),
        absent=absent_concepts(config, neighbours_of(config), beside_own=any(concept.corpus for concept in concepts)),
        present=frozenset(committed_keys(session.artifacts)),
        saes=sae_inputs(config, model, session.artifacts),
    )
    return make_plan(scope)
