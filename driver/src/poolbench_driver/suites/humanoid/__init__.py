"""The suite Humanoid: did a fine-tune make a model prefer something?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from poolbench.config import BUDGETS
from poolbench_driver.suites.humanoid.config import HumanoidConfig
from poolbench_driver.suites.registry import SUITES
from poolbench_driver.suites.suite import BoardSpec, Description, MetricInfo, Report, Suite, Tables

if TYPE_CHECKING:
    from poolbench_driver.cluster.session import Session
    from poolbench_driver.models import ModelInfo
    from poolbench_driver.records import RunFolder
    from poolbench_driver.suites.humanoid.plan import HumanoidPlan, HumanoidScope
    from poolbench_driver.suites.source import RowSource

SHIFTS = {
    "shift.variance": "variance of the valences over the words, after the fine-tune minus before",
    "shift.valence": "mean change of valence: cosine to liked words minus cosine to disliked ones",
    "shift.log_variance": "logarithm of the ratio of the variances, after over before",
}
PRIMARY = "shift.variance"


class Humanoid(Suite[HumanoidConfig, "HumanoidScope", "HumanoidPlan"]):
    """Shift of a model's representation of some words towards liked words, by a fine-tune."""

    id = "humanoid"
    summary = "preference shift: did a fine-tune move words towards what is liked, more than neutral ones do?"
    reference = "Humanoid: preference shift of fine-tuned language models"
    config = HumanoidConfig
    metrics = (
        *(MetricInfo(name, summary, True) for name, summary in SHIFTS.items()),
        MetricInfo("shift.favourites", "words that stand out more than any word of a neutral fine-tune", None, 0),
        MetricInfo("shift.plane_share", "share of the variance of the words that the figure's plane shows", None, 0, 1),
    )
    board = BoardSpec(
        ranked=(PRIMARY,),
        shown=(PRIMARY, f"{PRIMARY}.excess_neutral", f"{PRIMARY}.rank_neutral", "shift.valence", "shift.favourites"),
        entrant="entrant",
        block="task",
        apart="concept",
    )

    def preset(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the amounts of a preset."""
        return {"budget": BUDGETS[name].model_dump(mode="json")}

    def check(self, config: HumanoidConfig) -> None:
        """Raise UnknownNameError or ConfigError for words, fine-tunes or concepts that cannot be read."""
        from poolbench_driver.suites.humanoid.plan import check

        check(config)

    def resolve(self, config: HumanoidConfig, session: Session, model: ModelInfo | None = None) -> HumanoidScope:
        """Return what is measured: model, words, fine-tunes and concepts."""
        from poolbench_driver.suites.humanoid.plan import resolve

        return resolve(config, session, model)

    def plan(self, scope: HumanoidScope) -> HumanoidPlan:
        """Return the plan: every state of the model reads all texts, and the prober compares them."""
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
        """Return one row for each fine-tune and figure, and the words before and after."""
        from poolbench_driver.suites.humanoid.rows import assemble

        return assemble(plan, source)

    def report(self, folder: RunFolder) -> Report:
        """Return the page of a run from its tables."""
        from poolbench_driver.suites.humanoid.report import report

        return report(folder)


SUITES.add(Humanoid())
