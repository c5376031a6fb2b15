"""The suite `best_layer`: at which layer does a linear probe separate a concept best?

A listing of suites imports this file alone; `suite.py` is imported for a run.
"""

from collections.abc import Mapping
from typing import Any

from poolbench.config import LayerChoice, ProbesBudget, amounts
from poolbench_driver.config import PassagesSource, ReadingConfig
from poolbench_driver.contract.suite import BoardSpec, MetricInfo, Suite, SuiteInfo

AUROC = "best_layer.auroc"


class Settings(ReadingConfig):
    """What is read and how, and the settings that this suite adds."""

    budget: ProbesBudget = amounts(ProbesBudget, "demo")
    """How much is measured; result rows hold its name."""
    concepts: tuple[str, ...] = ()
    """Concept ids, or `all`."""
    corpus: PassagesSource = PassagesSource()
    """Where passages come from: `planted`, `real`, or a folder of JSONL files."""
    layers: tuple[LayerChoice, ...] | None = None
    """Block indices, depths, `embedding` or `final`; by default depths .5, .75 and 1."""
    pooling: str = "A1_mean"
    """Pooling strategy whose vectors are probed."""

    @classmethod
    def preset(cls, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the amounts of a preset, for two concepts at all quarters of the model's depth."""
        concepts, layers = ["causation", "contrast"], [0.25, 0.5, 0.75, 1.0]
        return super().preset(name, given) | {"concepts": concepts, "layers": layers}


def load() -> Suite[Any, Any, Any]:
    """Import what the suite does."""
    from poolbench_best_layer.suite import BestLayer

    return BestLayer()


SUITE = SuiteInfo(
    id="best_layer",
    summary="at which layer does a linear probe separate a concept best?",
    dataset="",
    revision="",
    licence="",
    config=Settings,
    metrics=(MetricInfo(AUROC, "out-of-fold AUROC of the probe at a layer", True, 0, 1),),
    board=BoardSpec(ranked=(AUROC,), shown=(AUROC,), entrant="entrant", averaged=False),
    load=load,
)
