"""The planted suite: texts and a model where the definitions alone say which strategies read a signal.

`words` has the vectors, `signals` what is expected, `passages` the texts, `judge` the comparison. The rest is D1 of
PoolBench.
"""

from typing import Any

from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import Suite, SuiteInfo
from poolbench_driver.suites.planted.config import PlantedConfig
from poolbench_driver.suites.poolbench.metrics import BOARD


def _load() -> Suite[Any, Any, Any]:
    from poolbench_driver.suites.planted.suite import Planted

    return Planted()


SUITES.add(
    SuiteInfo(
        id="planted",
        title="PoolBench",
        summary="do the strategies find signals whose places are known? texts and a model made for it",
        dataset="texts that the suite writes",
        revision="",
        licence="",
        config=PlantedConfig,
        board=BOARD,
        load=_load,
    ),
    __name__,
)
