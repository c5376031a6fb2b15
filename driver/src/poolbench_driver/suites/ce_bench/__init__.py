"""The suite CE-Bench: how interpretable is a sparse autoencoder, without asking another model?"""

from typing import Any

from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import Suite, SuiteInfo
from poolbench_driver.suites.ce_bench.config import CeBenchConfig
from poolbench_driver.suites.ce_bench.metrics import BOARD, METRICS


def _load() -> Suite[Any, Any, Any]:
    from poolbench_driver.suites.ce_bench.suite import CeBench

    return CeBench()


SUITES.add(
    SuiteInfo(
        id="ce-bench",
        title="CE-Bench",
        summary="sparse autoencoders: how clearly do their features tell two stories about a subject apart?",
        reference="github.com/Yusen-Peng/CE-Bench",
        citation="Gulko et al. (2025), CE-Bench: towards a reliable contrastive evaluation benchmark",
        dataset="GulkoA/contrastive-stories-v1 to -v4",
        revision="",
        licence="",
        config=CeBenchConfig,
        metrics=METRICS,
        board=BOARD,
        text_tables=("stories",),
        load=_load,
    ),
    __name__,
)
