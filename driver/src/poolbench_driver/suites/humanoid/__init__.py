"""The suite Humanoid: did a fine-tune make a model prefer something?"""

from __future__ import annotations

from typing import Any

from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import Suite, SuiteInfo
from poolbench_driver.suites.humanoid.config import HumanoidConfig
from poolbench_driver.suites.humanoid.metrics import BOARD, METRICS


def _load() -> Suite[Any, Any, Any]:
    from poolbench_driver.suites.humanoid.suite import Humanoid

    return Humanoid()


SUITES.add(
    SuiteInfo(
        id="humanoid",
        title="Preference shift",
        summary="preference shift: did a fine-tune move words towards what is liked, more than neutral ones do?",
        reference="github.com/fedor13F/Humanoid-BenchMark",
        citation="Humanoid: preference shift of fine-tuned language models",
        dataset="fedor13F/Humanoid-BenchMark",
        revision="e59f787",
        licence="MIT",
        config=HumanoidConfig,
        metrics=METRICS,
        board=BOARD,
        load=_load,
    ),
    __name__,
)
