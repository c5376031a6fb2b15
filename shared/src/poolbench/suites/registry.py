"""Registry of suites."""

from dataclasses import dataclass

from poolbench.registry import Registry
from poolbench.suites.metrics import METRICS


@dataclass(frozen=True)
class Suite:
    """A benchmark suite."""

    id: str  # value of the column `suite`
    version: int  # raised when the suite's meaning changes
    summary: str  # one sentence
    metrics: tuple[str, ...]  # metric ids (families such as `d1.direction` stand for their members)
    protocols: tuple[str, ...] = ("corrected",)  # named protocols, the default first
    reference: str = ""  # paper or other source


SUITES = Registry("suite", Suite, group="poolbench.suites", built_in=(), by_id=True)

#: Which pooling strategy best captures a concept in a model at a layer?
POOLBENCH = SUITES.add(
    Suite(
        id="poolbench",
        version=1,
        summary="19 pooling strategies, 17 concepts: separability (D1), steering (D2), disentanglement (D3)",
        metrics=tuple(name for name in METRICS if not name.startswith("probe.")),
        protocols=("corrected", "published"),
        reference="PoolBench: pooling strategies for concept representations in decoder language models",
    )
)
