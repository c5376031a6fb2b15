"""The suite data requirements: how many examples does a comparison of two probes need?"""

from typing import Any

from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import Suite, SuiteInfo
from poolbench_driver.suites.data_requirements.config import DataRequirementsConfig
from poolbench_driver.suites.data_requirements.metrics import BOARD, METRICS


def _load() -> Suite[Any, Any, Any]:
    from poolbench_driver.suites.data_requirements.suite import DataRequirements

    return DataRequirements()


SUITES.add(
    SuiteInfo(
        id="data-requirements",
        title="Data requirements",
        summary="data requirements: how many examples make the difference of two probing configurations reproducible?",
        reference="aclanthology.org/2022.findings-acl.326",
        citation="Zhu et al. (2022), On the data requirements of probing",
        dataset="",
        revision="",
        licence="of each set its own, see `ls probing-sets`",
        config=DataRequirementsConfig,
        metrics=METRICS,
        board=BOARD,
        load=_load,
    ),
    __name__,
)
