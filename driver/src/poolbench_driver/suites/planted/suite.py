"""What the planted suite does."""

from dataclasses import dataclass, replace
from typing import cast

from poolbench_driver.cluster.session import Session
from poolbench_driver.contract.abilities import Answers, Conclusion
from poolbench_driver.contract.page import Page
from poolbench_driver.contract.source import RowSource
from poolbench_driver.contract.suite import FinishedRun, Suite, Tables
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.plan import ConceptsPlan, make_plan
from poolbench_driver.stages.resolve import resolve
from poolbench_driver.stages.scope import Scope
from poolbench_driver.suites.planted.config import PlantedConfig
from poolbench_driver.suites.planted.judge import conclude
from poolbench_driver.suites.planted.register import register
from poolbench_driver.suites.poolbench.d1 import right_passages
from poolbench_driver.suites.poolbench.evidence import BEHIND
from poolbench_driver.suites.poolbench.report import report
from poolbench_driver.suites.poolbench.tables import assemble


@dataclass(frozen=True)
class PlantedScope:
    """The settings of a run of the planted suite, and the PoolBench scope with which D1 is measured."""

    config: PlantedConfig
    probing: Scope


class Planted(Suite[PlantedConfig, PlantedScope, ConceptsPlan]):
    """A check of the strategies on planted signals.

    The run fails if a strategy misses a signal that the strategy must detect, or detects a signal that it must miss.
    """

    evidence = BEHIND

    def resolve(self, config: PlantedConfig, session: Session, model: ModelInfo | None = None) -> PlantedScope:
        """Add the concepts of the suite to the store, and return the scope of the run."""
        register(session.artifacts.store)
        probing = resolve(config.probing, session, model)
        return PlantedScope(config.model_copy(update={"strategies": probing.config.strategies}), probing)

    def plan(self, scope: PlantedScope) -> ConceptsPlan:
        """Return the plan of D1 on the suite's concepts."""
        return replace(make_plan(scope.probing), config=scope.config)

    def assemble(self, plan: ConceptsPlan, source: RowSource) -> Tables:
        """Return the rows of D1."""
        return assemble(plan, source)

    def report(self, run: FinishedRun, page: Page) -> Page:
        """Return the report page, made as for PoolBench."""
        return report(run, page)

    def answers(self, run: FinishedRun) -> Answers:
        """Return whether the probe of each strategy and layer classified each passage correctly, by concept."""
        return right_passages(run.tables["passage_scores"])

    def conclude(self, run: FinishedRun) -> Conclusion:
        """Judge a run. Return the failed expectations, and a table of all expectations with their measured values."""
        return conclude(run.rows("results"), cast(PlantedConfig, run.config).strategies)
