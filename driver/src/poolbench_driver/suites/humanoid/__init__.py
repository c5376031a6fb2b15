"""The suite Humanoid: did a fine-tune make a model prefer something?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import Description, Suite, Tables, Units
from poolbench_driver.suites.humanoid.config import HumanoidConfig
from poolbench_driver.suites.humanoid.metrics import BOARD, METRICS

if TYPE_CHECKING:
    import pyarrow as pa

    from poolbench_driver.cluster.session import Session
    from poolbench_driver.contract.evidence import Evidence
    from poolbench_driver.contract.page import Page
    from poolbench_driver.contract.source import RowSource
    from poolbench_driver.models import ModelInfo
    from poolbench_driver.suites.humanoid.plan import HumanoidPlan, HumanoidScope


class Humanoid(Suite[HumanoidConfig, "HumanoidScope", "HumanoidPlan"]):
    """Shift of a model's representation of some words towards liked words, by a fine-tune."""

    id = "humanoid"
    summary = "preference shift: did a fine-tune move words towards what is liked, more than neutral ones do?"
    reference = "github.com/fedor13F/Humanoid-BenchMark"
    citation = "Humanoid: preference shift of fine-tuned language models"
    dataset = "fedor13F/Humanoid-BenchMark"
    revision = "e59f787"
    licence = "MIT"
    config = HumanoidConfig
    metrics = METRICS
    board = BOARD

    def check(self, config: HumanoidConfig) -> None:
        """Raise UnknownNameError or ConfigError for settings that no cluster could measure."""
        from poolbench_driver.suites.humanoid.plan import check

        check(config)

    def resolve(self, config: HumanoidConfig, session: Session, model: ModelInfo | None = None) -> HumanoidScope:
        """Return words, fine-tunes, layers and the model, checked."""
        from poolbench_driver.suites.humanoid.plan import resolve

        return resolve(config, session, model)

    def plan(self, scope: HumanoidScope) -> HumanoidPlan:
        """Return the plan of a scope."""
        from poolbench_driver.suites.humanoid.plan import plan

        return plan(scope)

    def describe(self, plan: HumanoidPlan) -> Description:
        """Return what a dry run says about a plan."""
        lists = plan.scope.words
        counted = {"words": len(lists.domain), "fine_tunes": len(plan.scope.tunes), "random_changes": plan.num_random}
        return Description(
            [", ".join(f"{number} {name.replace('_', ' ')}" for name, number in counted.items())], counted
        )

    def assemble(self, plan: HumanoidPlan, source: RowSource) -> Tables:
        """Return result rows and tables from the artifacts of a plan."""
        from poolbench_driver.suites.humanoid.rows import assemble

        return assemble(plan, source)

    def report(self, tables: Mapping[str, pa.Table], config: HumanoidConfig) -> Page:
        """Return the page of a run from its tables."""
        from poolbench_driver.suites.humanoid.report import report

        return report(tables)

    def evidence(self) -> Evidence:
        """Return the words of a fine-tune."""
        from poolbench_driver.suites.humanoid.evidence import BEHIND

        return BEHIND

    def units(self, tables: Mapping[str, pa.Table]) -> Units:
        """Return the words: the change of variance is a mean over them."""
        from poolbench_driver.suites.humanoid.rows import variance_by_word

        return Units("word", variance_by_word(tables["words"].to_pylist()))


SUITES.add(Humanoid())
