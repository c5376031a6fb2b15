"""What the suite data requirements does."""

import pyarrow.compute as pc

from poolbench_driver.cluster.session import Session
from poolbench_driver.contract.abilities import Answers
from poolbench_driver.contract.page import Page
from poolbench_driver.contract.source import RowSource
from poolbench_driver.contract.suite import Description, FinishedRun, Suite, Tables
from poolbench_driver.models import ModelInfo
from poolbench_driver.suites.data_requirements import plan as planning
from poolbench_driver.suites.data_requirements.config import DataRequirementsConfig
from poolbench_driver.suites.data_requirements.plan import DataPlan, DataScope
from poolbench_driver.suites.data_requirements.report import BEHIND, report
from poolbench_driver.suites.data_requirements.rows import assemble


class DataRequirements(Suite[DataRequirementsConfig, DataScope, DataPlan]):
    """Pilots of two probing configurations at several sizes, and the number of examples that separates the two."""

    evidence = BEHIND

    def check(self, config: DataRequirementsConfig) -> None:
        """Raise UnknownNameError, ConfigError or InputError for sets, strategies or files that are not there."""
        planning.check(config)

    def resolve(self, config: DataRequirementsConfig, session: Session, model: ModelInfo | None = None) -> DataScope:
        """Return sets, sizes, models and files, checked."""
        return planning.resolve(config, session, model)

    def plan(self, scope: DataScope) -> DataPlan:
        return planning.plan(scope)

    def describe(self, plan: DataPlan) -> Description:
        scope = plan.scope
        comparisons, sets = len(scope.config.against), len(scope.data)
        fits = sum(len(sizes) for sizes in scope.sizes.values()) * len(scope.config.seeds) * scope.config.folds
        counted = {"comparisons": comparisons, "sets": sets, "probes": fits * (comparisons + 1)}
        if plan.published:
            counted["published_probes"] = fits * len({number for number, _ in plan.published})
        return Description.of_numbers(counted)

    def assemble(self, plan: DataPlan, source: RowSource) -> Tables:
        return assemble(plan, source)

    def report(self, run: FinishedRun, page: Page) -> Page:
        return report(run, page)

    def answers(self, run: FinishedRun) -> Answers:
        """Return the test examples that each configuration had right, of the first seed at the largest size."""
        table = run.tables["answers"]
        right: Answers = {}
        for name in pc.unique(table["task"]).to_pylist():
            of_set = table.filter(pc.equal(table["task"], name))
            for column, extreme in (("seed", pc.min), ("size", pc.max)):
                of_set = of_set.filter(pc.equal(of_set[column], extreme(of_set[column])))
            for row in of_set.select(["configuration", "instance_id", "right"]).to_pylist():
                if row["right"] is not None:
                    right.setdefault(name, {}).setdefault(row["configuration"], {})[row["instance_id"]] = row["right"]
        return right
