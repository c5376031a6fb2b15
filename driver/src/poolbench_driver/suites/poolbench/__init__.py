"""The suite PoolBench: which pooling strategy best captures a concept in a model at a layer?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from poolbench_driver.config import ConceptsConfig
from poolbench_driver.suites.poolbench.metrics import METRICS
from poolbench_driver.suites.registry import SUITES
from poolbench_driver.suites.suite import BoardSpec, Suite

if TYPE_CHECKING:
    from poolbench_driver.cluster.session import Session
    from poolbench_driver.suites.needs import Need


class PoolBench(
    Suite[ConceptsConfig, Any, Any],
    functions={
        "preset": "presets:preset",
        "check": "names:check_names",
        "stand_ins": "needs:with_stand_ins",
        "resolve": "resolve:resolve",
        "plan": "plan:make_plan",
        "describe": "plan:describe",
        "assemble": "rows.tables:assemble",
        "report": "report:report",
    },
):
    """Separability (D1), steering (D2) and disentanglement (D3) of pooling strategies, over concepts."""

    id = "poolbench"
    summary = "19 pooling strategies, 17 concepts: separability (D1), steering (D2), disentanglement (D3)"
    reference = "PoolBench: pooling strategies for concept representations in decoder language models"
    config = ConceptsConfig
    metrics = METRICS
    board = BoardSpec(
        ranked=(
            "d1.auroc", "d1.auroc_test", "d1.auroc_nested", "d2.scp", "d2.best_gain", "d2.response_area.excess",
            "d3.robust_ld", "d3.robust_lc",
        ),
        shown=(
            "d1.auroc", "d1.auroc_test", "d1.excess_over_confound", "d2.best_gain", "d2.scp", "d3.robust_ld",
            "d3.robust_lc",
        ),
    )  # fmt: skip

    def way(self, protocol: str) -> Mapping[str, Any]:
        """Return how the reference reads and steers, for protocol `published`."""
        from poolbench_driver.suites.poolbench.presets import PUBLISHED

        return PUBLISHED if protocol == "published" else {}

    def missing(self, config: ConceptsConfig, session: Session) -> list[Need]:
        """Return what a run lacks on a cluster, with the flag that replaces it."""
        from poolbench_driver.imports.record import is_imported
        from poolbench_driver.suites.poolbench.needs import needs_of

        if is_imported(config.model):  # an import has everything
            return []
        return [need for need in needs_of(config, session.settings) if not need.found]


POOLBENCH = SUITES.add(PoolBench())
