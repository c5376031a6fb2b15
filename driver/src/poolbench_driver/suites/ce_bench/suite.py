"""What the suite CE-Bench does."""

from collections.abc import Sequence
from pathlib import Path

from poolbench_driver.cluster.session import Session
from poolbench_driver.contract.abilities import Recorded, Units
from poolbench_driver.contract.page import Page
from poolbench_driver.contract.source import RowSource
from poolbench_driver.contract.suite import Description, FinishedRun, Suite, Tables
from poolbench_driver.models import ModelInfo
from poolbench_driver.suites.ce_bench import plan as planning
from poolbench_driver.suites.ce_bench.config import CeBenchConfig
from poolbench_driver.suites.ce_bench.evidence import BEHIND
from poolbench_driver.suites.ce_bench.plan import CeBenchPlan, CeBenchScope
from poolbench_driver.suites.ce_bench.recordings import board, board_markdown, read_tree
from poolbench_driver.suites.ce_bench.report import page_of_view, report
from poolbench_driver.suites.ce_bench.rows import assemble
from poolbench_driver.suites.ce_bench.view import view_over


class CeBench(Suite[CeBenchConfig, CeBenchScope, CeBenchPlan]):
    """Contrastive evaluation of sparse autoencoders on pairs of stories."""

    evidence = BEHIND

    def check(self, config: CeBenchConfig) -> None:
        planning.check(config)

    def resolve(self, config: CeBenchConfig, session: Session, model: ModelInfo | None = None) -> CeBenchScope:
        """Return stories, autoencoders and the model, checked."""
        return planning.resolve(config, session, model)

    def plan(self, scope: CeBenchScope) -> CeBenchPlan:
        return planning.plan(scope)

    def describe(self, plan: CeBenchPlan) -> Description:
        stories = plan.scope.stories
        counted = {
            "autoencoders": len(plan.scope.saes),
            "pairs": stories.rows.num_rows,
            "subjects": len(set(stories.rows["subject"].to_pylist())),
            **({"probing sets": len(plan.scope.sets.by_set)} if plan.scope.sets.by_set else {}),
        }
        return Description.of_numbers(counted)

    def assemble(self, plan: CeBenchPlan, source: RowSource) -> Tables:
        return assemble(plan, source)

    def report(self, run: FinishedRun, page: Page) -> Page:
        return report(run, page)

    def joined(self, runs: Sequence[FinishedRun], page: Page) -> Page:
        return page_of_view(view_over(runs), page)

    def units(self, run: FinishedRun) -> Units:
        """Return the interpretability of each entrant by subject. The score of an entrant is its mean over subjects."""
        values: dict[str, dict[str, float]] = {}
        for row in run.rows("subjects"):
            if row["interpretability"] is not None:
                values.setdefault(row["entrant"], {})[row["subject"]] = row["interpretability"]
        return Units("subject", values)

    def recorded(self, source: Path) -> Recorded:
        """Return the board of a tree of recorded results."""
        tree = read_tree(source)
        return Recorded(board(tree.entries), board_markdown(source, tree), tree.notes)
