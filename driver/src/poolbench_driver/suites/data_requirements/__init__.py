"""The suite data requirements: how many examples does a comparison of two probes need?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import Answers, Description, Suite, Tables
from poolbench_driver.suites.data_requirements.config import DataRequirementsConfig
from poolbench_driver.suites.data_requirements.metrics import BOARD, METRICS

if TYPE_CHECKING:
    import pyarrow as pa

    from poolbench_driver.cluster.session import Session
    from poolbench_driver.contract.evidence import Evidence
    from poolbench_driver.contract.page import Page
    from poolbench_driver.contract.source import RowSource
    from poolbench_driver.models import ModelInfo
    from poolbench_driver.suites.data_requirements.plan import DataPlan, Scope


class DataRequirements(Suite[DataRequirementsConfig, "Scope", "DataPlan"]):
    """Pilots of two probing configurations at several sizes, and the number of examples that tells them apart."""

    id = "data-requirements"
    summary = "data requirements: how many examples make the difference of two probing configurations reproducible?"
    reference = "aclanthology.org/2022.findings-acl.326"
    citation = "Zhu et al. (2022), On the data requirements of probing"
    licence = "of each set its own, see `ls probing-sets`"
    config = DataRequirementsConfig
    metrics = METRICS
    board = BOARD

    def check(self, config: DataRequirementsConfig) -> None:
        """Raise UnknownNameError, ConfigError or InputError for sets, strategies or files that are not there."""
        from poolbench_driver.suites.data_requirements.plan import check

        check(config)

    def resolve(self, config: DataRequirementsConfig, session: Session, model: ModelInfo | None = None) -> Scope:
        """Return sets, sizes, models and files, checked."""
        from poolbench_driver.suites.data_requirements.plan import resolve

        return resolve(config, session, model)

    def plan(self, scope: Scope) -> DataPlan:
        """Return the plan of a scope."""
        from poolbench_driver.suites.data_requirements.plan import plan

        return plan(scope)

    def describe(self, plan: DataPlan) -> Description:
        """Return what a dry run says about a plan."""
        scope = plan.scope
        comparisons, sets = len(scope.config.against), len(scope.data)
        fits = sum(len(sizes) for sizes in scope.sizes.values()) * len(scope.config.seeds) * scope.config.folds
        counted = {"comparisons": comparisons, "sets": sets, "probes": fits * (comparisons + 1)}
        return Description([", ".join(f"{number} {name}" for name, number in counted.items())], counted)

    def assemble(self, plan: DataPlan, source: RowSource) -> Tables:
        """Return result rows and tables from the artifacts of a plan."""
        from poolbench_driver.suites.data_requirements.rows import assemble

        return assemble(plan, source)

    def report(self, tables: Mapping[str, pa.Table], config: DataRequirementsConfig) -> Page:
        """Return the page of a run from its tables."""
        from poolbench_driver.suites.data_requirements.report import report

        return report(tables, config)

    def evidence(self) -> Evidence:
        """Return a comparison at every size."""
        from poolbench_driver.suites.data_requirements.evidence import BEHIND

        return BEHIND

    def answers(self, tables: Mapping[str, pa.Table]) -> Answers:
        """Return the test examples that each configuration had right, of the first seed at the largest size."""
        import pyarrow.compute as pc

        table = tables["answers"]
        right: Answers = {}
        for name in pc.unique(table["task"]).to_pylist():
            of_set = table.filter(pc.equal(table["task"], name))
            for column, extreme in (("seed", pc.min), ("size", pc.max)):
                of_set = of_set.filter(pc.equal(of_set[column], extreme(of_set[column])))
            for row in of_set.select(["configuration", "instance_id", "right"]).to_pylist():
                if row["right"] is not None:
                    right.setdefault(name, {}).setdefault(row["configuration"], {})[row["instance_id"]] = row["right"]
        return right


SUITES.add(DataRequirements())
