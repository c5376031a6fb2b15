"""The suite Holmes: what does a representation know about language, and which pooling carries it?"""

from typing import Any

from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import Suite, SuiteInfo
from poolbench_driver.suites.holmes.config import HolmesConfig
from poolbench_driver.suites.holmes.metrics import BOARD, METRICS


def _load() -> Suite[Any, Any, Any]:
    from poolbench_driver.suites.holmes.suite import Holmes

    return Holmes()


SUITES.add(
    SuiteInfo(
        id="holmes",
        title="Holmes",
        summary="linguistic probing: which model, layer and pooling carry which property of language?",
        reference="github.com/Holmes-Benchmark/holmes-evaluation",
        citation="Waldis et al. (2024), Holmes: a benchmark to assess the linguistic competence of language models",
        dataset="Holmes-Benchmark/holmes-evaluation",
        revision="",
        licence="of each set its own, see `ls probing-sets`",
        config=HolmesConfig,
        metrics=METRICS,
        board=BOARD,
        text_tables=("examples",),
        load=_load,
    ),
    __name__,
)
