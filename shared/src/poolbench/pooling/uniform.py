"""Strategies that treat every real token alike."""

from poolbench.pooling.context import Reduction, TokenContext, Weights
from poolbench.pooling.position import CARD
from poolbench.pooling.registry import STRATEGIES


@STRATEGIES.register("A1_mean", version=1, family="uniform", summary="arithmetic mean over real tokens", reference=CARD)
def mean(context: TokenContext) -> Weights:
    """Weight 1/T on every real token."""
    return context.mean_of(context.real)


@STRATEGIES.register("A2_max", version=1, family="uniform", summary="element-wise maximum", reference=CARD)
def maximum(context: TokenContext) -> Reduction:
    """Element-wise maximum over the real tokens."""
    return Reduction("max")


@STRATEGIES.register("A3_min", version=1, family="uniform", summary="element-wise minimum", reference=CARD)
def minimum(context: TokenContext) -> Reduction:
    """Element-wise minimum over the real tokens."""
    return Reduction("min")


@STRATEGIES.register(
    "A4_norm_weighted",
    version=1,
    family="saliency",
    summary="weight proportional to the token's L2 norm",
    needs=("norms",),
    reference=CARD,
)
def norm_weighted(context: TokenContext) -> Weights:
    """Weight proportional to the L2 norm of the hidden state at this layer."""
    return context.proportional_to(context.require("norms"))
