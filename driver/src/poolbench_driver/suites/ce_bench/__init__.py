"""The suite CE-Bench: how interpretable is a sparse autoencoder, without asking another model?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poolbench_driver.suites.ce_bench.config import CeBenchConfig
from poolbench_driver.suites.registry import SUITES
from poolbench_driver.suites.suite import BoardSpec, Description, MetricInfo, Recorded, Suite

if TYPE_CHECKING:
    from pathlib import Path

    from poolbench_driver.suites.ce_bench.plan import CeBenchPlan

PRIMARY, HELD_OUT = "ce.interpretability", "ce.held_out"
MINUS_L0, LOG_WIDTH = "ce.minus_l0", "ce.log_width"
RECOVERED = "ce.loss_recovered"


class CeBench(
    Suite[CeBenchConfig, Any, "CeBenchPlan"],
    functions={
        "check": "plan:check",
        "resolve": "plan:resolve",
        "plan": "plan:plan",
        "assemble": "rows:assemble",
        "report": "report:report",
        "joined": "report:joined",
    },
):
    """Contrastive evaluation of sparse autoencoders on pairs of stories."""

    id = "ce-bench"
    summary = "sparse autoencoders: how clearly do their features tell two stories about a subject apart?"
    reference = "Gulko et al. (2025), CE-Bench: towards a reliable contrastive evaluation benchmark"
    config = CeBenchConfig
    metrics = (
        MetricInfo(PRIMARY, "max z of abs(V1 - V2) + abs(I1 - I2), over the square root of d", True, 0, variants=True),
        MetricInfo("ce.contrastive", "max z of abs(V1 - V2), over the square root of d", True, 0, variants=True),
        MetricInfo("ce.independent", "max z of abs(I1 - I2), over the square root of d", True, 0, variants=True),
        MetricInfo(HELD_OUT, "share of right pairs, by the feature chosen on the subject's other rows", True, 0, 1),
        MetricInfo("ce.paper", "contrastive + independent - .25 L0, as published", True),
        MetricInfo(MINUS_L0, "minus the number of features per token: a score of size alone", True, None, 0),
        MetricInfo(LOG_WIDTH, "log2 of the number of features: a score of size alone", True, 0),
        MetricInfo("ce.l0", "features per token that are not zero", None, 0),
        MetricInfo("ce.num_features", "number d of features", None, 1),
        MetricInfo("ce.unexplained_variance", "squared error of the reconstruction over the variance", False, 0),
        MetricInfo("sparse.auroc", "AUROC out of fold of a probe of k features", True, 0, 1),
        MetricInfo("sparse.auroc_test", "AUROC on the test split of a probe of k features", True, 0, 1),
        MetricInfo("sparse.seed_spread", "standard deviation of sparse.auroc over seeds of folds", False, 0),
        MetricInfo("ce.dead_share", "share of features that are zero on all tokens of the stories", False, 0, 1),
        MetricInfo(RECOVERED, "share of the loss from zeros for states that the reconstruction avoids", True),
        MetricInfo("ce.dense_share", "share of features that are active on over a tenth of the tokens", None, 0, 1),
    )
    board = BoardSpec(
        ranked=(PRIMARY, HELD_OUT, MINUS_L0, LOG_WIDTH),
        shown=(PRIMARY, HELD_OUT, "ce.contrastive", "ce.independent", "ce.l0", "ce.unexplained_variance", RECOVERED),
        entrant="entrant",
        block="task",
        averaged=False,
    )
    shows_texts = True

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

    def recorded(self, source: Path) -> Recorded:
        """Return the board of a tree of recorded results, or how a csv table of scores agrees with SAEBench."""
        from poolbench_driver.suites.ce_bench.agreement import agreement
        from poolbench_driver.suites.ce_bench.claims import claims_markdown
        from poolbench_driver.suites.ce_bench.recorded import board, board_markdown, read_tree

        if source.is_file() or source.suffix == ".csv":
            return agreement(source)
        tree = read_tree(source)
        text = f"{board_markdown(source, tree)}\n\n{claims_markdown(tree.entries)}"
        return Recorded(board(tree.entries), text, tree.notes)


SUITES.add(CeBench())
