"""The suite `poolbench`: which pooling strategy best captures a concept in a model at a layer?"""

from poolbench.suites.metrics import METRICS
from poolbench.suites.registry import SUITES, Suite

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
