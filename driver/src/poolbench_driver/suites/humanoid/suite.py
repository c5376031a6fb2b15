"""What the suite Humanoid does."""

from poolbench_driver.cluster.session import Session
from poolbench_driver.contract.abilities import Units
from poolbench_driver.contract.page import Page
from poolbench_driver.contract.source import RowSource
from poolbench_driver.contract.suite import Description, FinishedRun, Suite, Tables
from poolbench_driver.models import ModelInfo
from poolbench_driver.suites.humanoid import plan as planning
from poolbench_driver.suites.humanoid.config import HumanoidConfig
from poolbench_driver.suites.humanoid.plan import HumanoidPlan, HumanoidScope
from poolbench_driver.suites.humanoid.report import BEHIND, report
from poolbench_driver.suites.humanoid.rows import assemble, variance_by_word


class Humanoid(Suite[HumanoidConfig, HumanoidScope, HumanoidPlan]):
    """Shift of a model's representation of some words towards liked words, by a fine-tune."""

    evidence = BEHIND

    def check(self, config: HumanoidConfig) -> None:
        planning.check(config)

    def resolve(self, config: HumanoidConfig, session: Session, model: ModelInfo | None = None) -> HumanoidScope:
        """Return words, fine-tunes, layers and the model, checked."""
        return planning.resolve(config, session, model)

    def plan(self, scope: HumanoidScope) -> HumanoidPlan:
        return planning.plan(scope)

    def describe(self, plan: HumanoidPlan) -> Description:
        lists = plan.scope.words
        counted = {"words": len(lists.domain), "fine_tunes": len(plan.scope.tunes), "random_changes": plan.num_random}
        return Description.of_numbers(counted)

    def assemble(self, plan: HumanoidPlan, source: RowSource) -> Tables:
        return assemble(plan, source)

    def report(self, run: FinishedRun, page: Page) -> Page:
        return report(run, page)

    def units(self, run: FinishedRun) -> Units:
        """Return the contribution of each word. The change of variance is the mean over words."""
        return Units("word", variance_by_word(run.rows("words")))
