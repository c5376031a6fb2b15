"""Registry of suites."""

from dataclasses import dataclass

from poolbench.registry import Registry
from poolbench.suites.metrics import METRICS


@dataclass(frozen=True)
class Suite:
    """A benchmark suite.

    Attributes:
        id: Value of the column `suite`.
        version: Raised when the suite's meaning changes.
        summary: One sentence.
        metrics: Metric ids (families such as `d1.direction` stand for their members).
        protocols: Named protocols, the default first.
        reference: Paper or other source.
    """

    id: str
    version: int
    summary: str
    metrics: tuple[str, ...]
    protocols: tuple[str, ...] = ("corrected",)
    reference: str = ""


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
