"""The planted suite: texts and a model where the definitions alone say which strategies read a signal.

`words` has the vectors, `signals` what is expected, `passages` the texts, `judge` the comparison. The rest is D1 of
PoolBench.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import Answers, Conclusion, Suite, Tables
from poolbench_driver.suites.planted.config import PlantedConfig
from poolbench_driver.suites.poolbench.metrics import BOARD

if TYPE_CHECKING:
    import pyarrow as pa

    from poolbench.contracts import Row
    from poolbench_driver.cluster.session import Session
    from poolbench_driver.contract.evidence import Evidence
    from poolbench_driver.contract.page import Page
    from poolbench_driver.contract.source import RowSource
    from poolbench_driver.models import ModelInfo
    from poolbench_driver.stages.scope import Scope
    from poolbench_driver.suites.poolbench.plan import PoolBenchPlan


@dataclass(frozen=True)
class PlantedScope:
    """What a run checks, and the scope of PoolBench that measures it."""

    config: PlantedConfig
    probing: Scope


class Planted(Suite[PlantedConfig, PlantedScope, "PoolBenchPlan"]):
    """A check of the strategies themselves: a strategy that does not find what it must find fails the run."""

    id = "planted"
    summary = "do the strategies find signals whose places are known? texts and a model made for it"
    dataset = "texts that the suite writes"
    config = PlantedConfig
    board = BOARD

    def resolve(self, config: PlantedConfig, session: Session, model: ModelInfo | None = None) -> PlantedScope:
        """Put the suite's concepts into the store, and return what is measured."""
        from poolbench_driver.stages.resolve import resolve
        from poolbench_driver.suites.planted.register import register

        register(session.artifacts.store)
        probing = resolve(config.probing, session, model)
        return PlantedScope(config.model_copy(update={"strategies": probing.config.strategies}), probing)

    def plan(self, scope: PlantedScope) -> PoolBenchPlan:
        """Return the plan of D1 on the suite's concepts."""
        from poolbench_driver.suites.poolbench.plan import make_plan

        return replace(make_plan(scope.probing), config=scope.config)

    def assemble(self, plan: PoolBenchPlan, source: RowSource) -> Tables:
        """Return the rows of D1."""
        from poolbench_driver.suites.poolbench.tables import assemble

        return assemble(plan, source)

    def report(self, tables: Mapping[str, pa.Table], config: PlantedConfig) -> Page:
        """Return the page of PoolBench."""
        from poolbench_driver.suites.poolbench.report import report

        return report(tables)

    def evidence(self) -> Evidence:
        """Return passages by the probe's score, or steered texts by strength."""
        from poolbench_driver.suites.poolbench.evidence import BEHIND

        return BEHIND

    def answers(self, tables: Mapping[str, pa.Table]) -> Answers:
        """Return the passages that the probe of each strategy and layer had right, by concept."""
        from poolbench_driver.suites.poolbench.d1 import right_passages

        return right_passages(tables["passage_scores"])

    def conclude(self, tables: Mapping[str, pa.Table], config: PlantedConfig) -> Conclusion:
        """Return every expectation with what was measured, and what does not hold."""
        from poolbench_driver.suites.planted.judge import conclude

        return conclude(tables["results"].to_pylist(), config.strategies)


SUITES.add(Planted())
