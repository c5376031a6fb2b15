"""The suite PoolBench: which pooling strategy best captures a concept in a model at a layer?"""

from __future__ import annotations

from typing import Any

from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import Suite, SuiteInfo
from poolbench_driver.suites.poolbench.config import PoolBenchConfig
from poolbench_driver.suites.poolbench.metrics import BOARD, METRICS
from poolbench_driver.suites.poolbench.presets import TABLES


def _load() -> Suite[Any, Any, Any]:
    from poolbench_driver.suites.poolbench.suite import PoolBench

    return PoolBench()


SUITES.add(
    SuiteInfo(
        id="poolbench",
        title="PoolBench",
        summary="19 pooling strategies, 17 concepts: separability (D1), steering (D2), disentanglement (D3)",
        reference="github.com/2023mc21517-arch/poolbench",
        citation="PoolBench: pooling strategies for concept representations in decoder language models",
        dataset="2023mc21517-arch/poolbench",
        revision="283209c2e53c0395217b2cbcbec2c1fd6d4c7f8a",
        licence="MIT",
        config=PoolBenchConfig,
        metrics=METRICS,
        board=BOARD,
        published_tables=TABLES,
        load=_load,
    ),
    __name__,
)
