"""What the suite PoolBench does."""

from collections.abc import Iterator, Mapping
from typing import Any

from poolbench.contracts import Row
from poolbench.settings import ClusterSettings
from poolbench_driver.cluster.session import Session
from poolbench_driver.config import ConceptsConfig
from poolbench_driver.contract.abilities import Answers, Need
from poolbench_driver.contract.page import Page
from poolbench_driver.contract.published import PublishedModel, PublishedTable
from poolbench_driver.contract.source import RowSource
from poolbench_driver.contract.suite import Description, FinishedRun, Suite, Tables
from poolbench_driver.contract.verification import Check, Say
from poolbench_driver.imports.states import is_imported
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.names import check_names
from poolbench_driver.stages.plan import ConceptsPlan, make_plan, num_texts
from poolbench_driver.stages.resolve import resolve
from poolbench_driver.stages.scope import Scope
from poolbench_driver.suites.poolbench import published_table, verification
from poolbench_driver.suites.poolbench.d1 import right_passages
from poolbench_driver.suites.poolbench.evidence import BEHIND
from poolbench_driver.suites.poolbench.needs import needs_of, with_stand_ins
from poolbench_driver.suites.poolbench.presets import other_settings
from poolbench_driver.suites.poolbench.published_texts import with_published_texts
from poolbench_driver.suites.poolbench.report import report
from poolbench_driver.suites.poolbench.tables import assemble


class PoolBench(Suite[ConceptsConfig, Scope, ConceptsPlan]):
    """Separability (D1), steering (D2) and disentanglement (D3) of pooling strategies, over concepts."""

    evidence = BEHIND
    metrics_of_scores = verification.OF_PASSAGES

    def check(self, config: ConceptsConfig) -> None:
        """Check the names of strategies and concepts. Raise UnknownNameError or ConfigError for an unknown name."""
        check_names(config)

    def missing(self, config: ConceptsConfig, session: Session) -> list[Need]:
        """Return the needs of a run that the cluster does not meet. Each need has a remedy, such as another flag."""
        return [need for need in self.needs(config, session.settings) if not need.found]

    def stand_ins(
        self, config: ConceptsConfig, session: Session
    ) -> tuple[ConceptsConfig, ModelInfo | None, list[Need]]:
        """Return settings and a model with which a dry run can count, and the needs that this model replaces."""
        return with_stand_ins(config, session)

    def resolve(self, config: ConceptsConfig, session: Session, model: ModelInfo | None = None) -> Scope:
        """Check and return the concepts, strategies, layers and model of a run."""
        return with_published_texts(resolve(config, session, model))

    def plan(self, scope: Scope) -> ConceptsPlan:
        return make_plan(scope)

    def describe(self, plan: ConceptsPlan) -> Description:
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

    def assemble(self, plan: ConceptsPlan, source: RowSource) -> Tables:
        return assemble(plan, source)

    def report(self, run: FinishedRun, page: Page) -> Page:
        return report(run, page)

    def answers(self, run: FinishedRun) -> Answers:
        """Return whether the probe of each strategy and layer classified each held-out passage rightly, by concept."""
        return right_passages(run.tables["passage_scores"])

    def verify(self, run: FinishedRun, say: Say) -> Iterator[Check]:
        """Yield checks of cells, corpus, D1, D2 and D3 against the scores of passages and texts."""
        return verification.verify(run, say)

    def with_scores(self, config: ConceptsConfig, entrant: str) -> ConceptsConfig:
        """Return the settings of a run that measures D1 of one entrant."""
        return config.model_copy(update={"strategies": (entrant,), "metrics": ("d1",)})

    def figures_of_scores(self, run: FinishedRun, say: Say) -> list[Row]:
        """Return the rows of D1 that follow from scores of passages."""
        return verification.figures_of_scores(run, say)

    def needs(self, config: ConceptsConfig, cluster: ClusterSettings | None) -> list[Need]:
        """Return the needs of a run, met or not. A run of imported states has none."""
        return [] if is_imported(config.model) else list(needs_of(config, cluster))

    def published_table(self, name: str) -> PublishedTable:
        """Return the official table, or read a table from a checkout of its repository or from another folder."""
        return published_table.published_table(name)

    def settings_of_run(self, table: PublishedTable, model: PublishedModel, corpus: str) -> Mapping[str, Any]:
        """Return the settings of the card at the layer of the table."""
        return published_table.settings_of_run(table, model, corpus)

    def other_settings(self, config: ConceptsConfig) -> list[str]:
        """Return sentences on the settings in which a run differs from the published run of the same model."""
        return [str(setting) for setting in other_settings(config)]

    def behind(self, plan: ConceptsPlan, block: str, entrant: str, layer: int) -> frozenset[str]:
        """Return the keys of the artifacts behind the results of a strategy on a concept at a layer."""
        return verification.behind(plan, block, entrant, layer)
