"""The suite CE-Bench: how interpretable is a sparse autoencoder, without asking another model?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import Description, FinishedRun, Recorded, Suite, Tables, Units
from poolbench_driver.suites.ce_bench.config import CeBenchConfig
from poolbench_driver.suites.ce_bench.metrics import BOARD, METRICS

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from poolbench_driver.cluster.session import Session
    from poolbench_driver.contract.evidence import Evidence
    from poolbench_driver.contract.page import Page
    from poolbench_driver.contract.source import RowSource
    from poolbench_driver.models import ModelInfo
    from poolbench_driver.suites.ce_bench.plan import CeBenchPlan, CeBenchScope


class CeBench(Suite[CeBenchConfig, "CeBenchScope", "CeBenchPlan"]):
    """Contrastive evaluation of sparse autoencoders on pairs of stories."""

    id = "ce-bench"
    summary = "sparse autoencoders: how clearly do their features tell two stories about a subject apart?"
    reference = "github.com/Yusen-Peng/CE-Bench"
    citation = "Gulko et al. (2025), CE-Bench: towards a reliable contrastive evaluation benchmark"
    dataset = "GulkoA/contrastive-stories-v1 to -v4"
    config = CeBenchConfig
    metrics = METRICS
    board = BOARD
    text_tables = ("stories",)

    def check(self, config: CeBenchConfig) -> None:
        """Raise UnknownNameError or ConfigError for settings that no cluster could measure."""
        from poolbench_driver.suites.ce_bench.plan import check

        check(config)

    def resolve(self, config: CeBenchConfig, session: Session, model: ModelInfo | None = None) -> CeBenchScope:
        """Return stories, autoencoders and the model, checked."""
        from poolbench_driver.suites.ce_bench.plan import resolve

        return resolve(config, session, model)

    def plan(self, scope: CeBenchScope) -> CeBenchPlan:
        """Return the plan of a scope."""
        from poolbench_driver.suites.ce_bench.plan import plan

        return plan(scope)

    def describe(self, plan: CeBenchPlan) -> Description:
        """Return what a dry run says about a plan."""
        stories = plan.scope.stories
        counted = {
            "autoencoders": len(plan.scope.saes),
            "pairs": stories.rows.num_rows,
            "subjects": len(set(stories.rows["subject"].to_pylist())),
            **({"probing sets": len(plan.scope.sets.by_set)} if plan.scope.sets.by_set else {}),
        }
        return Description([", ".join(f"{number} {name}" for name, number in counted.items())], counted)

    def assemble(self, plan: CeBenchPlan, source: RowSource) -> Tables:
        """Return result rows and tables from the artifacts of a plan."""
        from poolbench_driver.suites.ce_bench.rows import assemble

        return assemble(plan, source)

    def report(self, tables: Mapping[str, pa.Table], config: CeBenchConfig) -> Page:
        """Return the page of a run from its tables."""
        from poolbench_driver.suites.ce_bench.report import report

        return report(tables)

    def evidence(self) -> Evidence:
        """Return the stories of the subjects that an entrant separates best, with their features."""
        from poolbench_driver.suites.ce_bench.evidence import BEHIND

        return BEHIND

    def joined(self, runs: Sequence[FinishedRun]) -> Page:
        """Return the board of several runs."""
        from poolbench_driver.suites.ce_bench.report import joined

        return joined(runs)

    def units(self, tables: Mapping[str, pa.Table]) -> Units:
        """Return the subjects: the score of an entrant is its mean over them."""
        values: dict[str, dict[str, float]] = {}
        for row in tables["subjects"].to_pylist():
            if row["interpretability"] is not None:
                values.setdefault(row["entrant"], {})[row["subject"]] = row["interpretability"]
        return Units("subject", values)

    def recorded(self, source: Path) -> Recorded:
        """Return the board of a tree of recorded results."""
        from poolbench_driver.suites.ce_bench.recorded import board, board_markdown, read_tree

        tree = read_tree(source)
        return Recorded(board(tree.entries), board_markdown(source, tree), tree.notes)


SUITES.add(CeBench())
