"""The suite Humanoid: did a fine-tune make a model prefer something?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poolbench_driver.suites.humanoid.config import HumanoidConfig
from poolbench_driver.suites.registry import SUITES
from poolbench_driver.suites.suite import BoardSpec, Description, MetricInfo, Suite

if TYPE_CHECKING:
    from poolbench_driver.suites.humanoid.plan import HumanoidPlan

SHIFTS = {
    "shift.variance": "variance of the valences over the words, after the fine-tune minus before",
    "shift.valence": "mean change of valence: cosine to liked words minus cosine to disliked ones",
    "shift.log_variance": "logarithm of the ratio of the variances, after over before",
}
PRIMARY = "shift.variance"


class Humanoid(
    Suite[HumanoidConfig, Any, "HumanoidPlan"],
    functions={
        "check": "plan:check",
        "resolve": "plan:resolve",
        "plan": "plan:plan",
        "assemble": "rows:assemble",
        "report": "report:report",
    },
):
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

    def describe(self, plan: HumanoidPlan) -> Description:
        """Return what a dry run says about a plan."""
        lists = plan.scope.words
        counted = {"words": len(lists.domain), "fine_tunes": len(plan.scope.tunes), "random_changes": plan.num_random}
        return Description(
            [", ".join(f"{number} {name.replace('_', ' ')}" for name, number in counted.items())], counted
        )


SUITES.add(Humanoid())
