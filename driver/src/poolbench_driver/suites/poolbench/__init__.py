"""The suite PoolBench: which pooling strategy best captures a concept in a model at a layer?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from poolbench_driver.config import REAL_TEXT, ConceptsConfig
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import Answers, Description, Suite, Tables
from poolbench_driver.suites.poolbench.metrics import BOARD, METRICS
from poolbench_driver.suites.poolbench.presets import PUBLISHED, preset_settings

if TYPE_CHECKING:
    import pyarrow as pa

    from poolbench.contracts import Row
    from poolbench_driver.cluster.session import Session
    from poolbench_driver.contract.evidence import Evidence
    from poolbench_driver.contract.page import Page
    from poolbench_driver.contract.source import RowSource
    from poolbench_driver.contract.suite import FinishedRun, Need
    from poolbench_driver.contract.verification import Check, Say
    from poolbench_driver.models import ModelInfo
    from poolbench_driver.stages.scope import Scope
    from poolbench_driver.suites.poolbench.plan import PoolBenchPlan


class PoolBench(Suite[ConceptsConfig, "Scope", "PoolBenchPlan"]):
    """Separability (D1), steering (D2) and disentanglement (D3) of pooling strategies, over concepts."""

    id = "poolbench"
    summary = "19 pooling strategies, 17 concepts: separability (D1), steering (D2), disentanglement (D3)"
    reference = "github.com/2023mc21517-arch/poolbench"
    citation = "PoolBench: pooling strategies for concept representations in decoder language models"
    dataset = "2023mc21517-arch/poolbench"
    revision = "283209c2e53c0395217b2cbcbec2c1fd6d4c7f8a"
    licence = "MIT"
    config = ConceptsConfig
    metrics = METRICS
    board = BOARD

    def preset(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a named preset."""
        return preset_settings(name, given)

    def real_text(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the corpus that ships."""
        return REAL_TEXT

    def way(self, protocol: str) -> Mapping[str, Any]:
        """Return how the reference reads and steers, for protocol `published`."""
        return PUBLISHED if protocol == "published" else {}

    def check(self, config: ConceptsConfig) -> None:
        """Raise UnknownNameError or ConfigError for strategies and concepts that are not there."""
        from poolbench_driver.stages.names import check_names

        check_names(config)

    def missing(self, config: ConceptsConfig, session: Session) -> list[Need]:
        """Return what a run lacks on a cluster, with the flag that replaces it."""
        from poolbench_driver.imports.imported_states import is_imported
        from poolbench_driver.suites.poolbench.needs import needs_of

        if is_imported(config.model):  # an import has everything
            return []
        return [need for need in needs_of(config, session.settings) if not need.found]

    def stand_ins(
        self, config: ConceptsConfig, session: Session
    ) -> tuple[ConceptsConfig, ModelInfo | None, list[Need]]:
        """Return settings and model that a dry run can count with where something is missing, and what that is."""
        from poolbench_driver.suites.poolbench.needs import with_stand_ins

        return with_stand_ins(config, session)

    def resolve(self, config: ConceptsConfig, session: Session, model: ModelInfo | None = None) -> Scope:
        """Return concepts, strategies, layers and the model, checked."""
        from poolbench_driver.stages.resolve import resolve
        from poolbench_driver.suites.poolbench.published_texts import with_published_texts

        return with_published_texts(resolve(config, session, model))

    def plan(self, scope: Scope) -> PoolBenchPlan:
        """Return the plan of a scope."""
        from poolbench_driver.suites.poolbench.plan import make_plan

        return make_plan(scope)

    def describe(self, plan: PoolBenchPlan) -> Description:
        """Return what a dry run says about a plan."""
        from poolbench_driver.suites.poolbench.plan import num_texts

        scope = plan.scope
        steering = f", steering at layer {scope.steering_layer}" if scope.steers else ""
        lines = [
            f"concepts {', '.join(scope.config.concepts)}",
            f"{len(scope.strategies)} strategies, layers {scope.layers}{steering}",
        ]
        fields = {
            "concepts": list(scope.config.concepts),
            "strategies": [spec.id for spec in scope.strategies],
            "layers": scope.layers,
        }
        return Description(lines, fields, num_texts(scope))

    def assemble(self, plan: PoolBenchPlan, source: RowSource) -> Tables:
        """Return result rows and tables from the artifacts of a plan."""
        from poolbench_driver.suites.poolbench.tables import assemble

        return assemble(plan, source)

    def report(self, tables: Mapping[str, pa.Table], config: ConceptsConfig) -> Page:
        """Return the page of a run from its tables."""
        from poolbench_driver.suites.poolbench.report import report

        return report(tables)

    def evidence(self) -> Evidence:
        """Return passages by the probe's score, or steered texts by strength."""
        from poolbench_driver.suites.poolbench.evidence import BEHIND

        return BEHIND

    def answers(self, tables: Mapping[str, pa.Table]) -> Answers:
        """Return the passages that the probe of each strategy and layer had right, by concept; each was held out."""
        from poolbench_driver.suites.poolbench.d1 import right_passages

        return right_passages(tables["passage_scores"])

    def verify(self, run: FinishedRun, say: Say) -> Iterator[Check]:
        """Yield what the scores of passages and texts show of cells, corpus, D1, D2 and D3."""
        from poolbench_driver.suites.poolbench.verification import verify

        return verify(run, say)

    def behind(self, plan: PoolBenchPlan, block: str, entrant: str, layer: int) -> frozenset[str]:
        """Return the artifacts of a strategy on a concept at a layer."""
        from poolbench_driver.suites.poolbench.verification import behind

        return behind(plan, block, entrant, layer)


SUITES.add(PoolBench())
