"""Strategies of the extended board: controls and poolings known from sentence encoders."""

import hashlib
from functools import partial
from typing import Annotated

import numpy as np
from pydantic import Field

from poolbench.pooling.basic import last_k
from poolbench.pooling.context import Reduction, TokenContext, Weights
from poolbench.pooling.registry import STRATEGIES, StrategySpec

#: Cosine of state and gradient up to which bfloat16 rounding may be all of it; elsewhere than behind the last
#: block the largest of a passage is about .1.
RIGHT_ANGLE = 1e-3
SENTENCE_ENCODERS = "Reimers and Gurevych 2019, Sentence-BERT, and the pooling modes of its library"


@STRATEGIES.register(
    "A5_median",
    version=1,
    family="uniform",
    summary="element-wise median over real tokens",
    reference="robust A1",
    board="extended",
)
def median(context: TokenContext) -> Reduction:
    """Return the element-wise median over the real tokens.

    For an even number, this is the mean of the two middle values.
    """
    return Reduction("median")


@STRATEGIES.register(
    "A6_sum",
    version=1,
    family="uniform",
    summary="sum over real tokens (carries passage length)",
    reference="control for length",
    board="extended",
)
def total(context: TokenContext) -> Weights:
    """Put weight 1 on every real token."""
    return _scaled(context, np.ones(context.num_positions))


@STRATEGIES.register(
    "A7_random",
    version=1,
    family="uniform",
    summary="mean over a random half of the real tokens, seeded by the passage id",
    reference="control: how much of A1 half of the tokens keeps",
    board="extended",
    draws=True,
)
def random_half(context: TokenContext, *, share: Annotated[float, Field(gt=0, le=1)] = 0.5) -> Weights:
    """Average `ceil(share * T)` real tokens drawn without replacement."""
    seed = int.from_bytes(hashlib.sha256(context.passage_id.encode()).digest()[:8], "big")
    count = int(np.ceil(share * len(context.real)))
    return context.mean_of(np.random.default_rng(seed).choice(context.real, count, replace=False))


@STRATEGIES.register(
    "A8_unit_mean",
    version=1,
    family="uniform",
    summary="mean over real tokens of h_t divided by its L2 norm",
    needs=("norms",),
    reference="removes the share of massive activations from A1",
    board="extended",
)
def unit_mean(context: TokenContext) -> Weights:
    """Put weight 1 / (T * norm) on every real token. A token whose state is zero gets weight 0."""
    norms = context.require("norms")
    inverse = np.divide(1.0, norms, out=np.zeros(len(norms)), where=norms > 0)
    return _scaled(context, inverse / len(context.real))


@STRATEGIES.register(
    "A9_position_weighted",
    version=1,
    family="uniform",
    summary="weight of token t proportional to t = 1, ..., T",
    reference="Muennighoff 2022, SGPT, arXiv:2202.08904, equation 2",
    board="extended",
)
def position_weighted(context: TokenContext) -> Weights:
    """Weigh by the 1-based position among the real tokens."""
    saliency = np.zeros(context.num_positions)
    saliency[context.real] = np.arange(1, len(context.real) + 1)
    return context.proportional_to(saliency)


@STRATEGIES.register(
    "A10_mean_sqrt_len",
    version=1,
    family="uniform",
    summary="sum over real tokens divided by sqrt(T)",
    reference=SENTENCE_ENCODERS,
    board="extended",
)
def mean_sqrt_len(context: TokenContext) -> Weights:
    """Put weight 1 / sqrt(T) on every real token."""
    return _scaled(context, np.full(context.num_positions, len(context.real) ** -0.5))


@STRATEGIES.register(
    "G1_input_x_gradient",
    version=1,
    family="saliency",
    summary="weight of token t proportional to the absolute value of h_t . dL/dh_t, with L as in S2",
    needs=("gradient_dot", "gradient", "norms"),
    reference="Shrikumar et al. 2016, arXiv:1605.01713, input times gradient, at hidden states",
    board="extended",
)
def input_x_gradient(context: TokenContext) -> Weights:
    """Weigh tokens by the first-order change of the loss if the token's state were removed.

    After the last block there is only a norm, whose output does not change when h is scaled. There h . dL/dh is zero,
    up to rounding. If h and its gradient are orthogonal at every token, up to `RIGHT_ANGLE`, the weights are those of
    A1.
    """
    product, lengths = np.abs(context.require("gradient_dot")), context.require("norms") * context.require("gradient")
    if np.all(product[context.real] <= RIGHT_ANGLE * lengths[context.real]):
        return context.mean_of(np.empty(0, dtype=np.int64))
    return context.proportional_to(product)


for _k in (4, 8):
    STRATEGIES.add(
        StrategySpec(
            f"W2_last_{_k}",
            version=1,
            family="window",
            summary=f"mean of the last {_k} tokens",
            function=partial(last_k, k=_k),
            reference="W2_last_k with a shorter window",
            board="extended",
        ),
        __name__,
    )


def _scaled(context: TokenContext, values_T: np.ndarray) -> Weights:
    """Return `values_T` on the real tokens and zero elsewhere."""
    return Weights(np.where(context.special, 0.0, values_T))


@STRATEGIES.register(
    "A11_mean_all",
    version=1,
    family="uniform",
    summary="mean over all positions, special tokens and sinks included",
    reference="Waldis et al. (2024), Holmes: texts as its released code pools them",
    board="extended",
    on_request=True,  # a published definition, and not an entrant
    whole_text=True,
)
def mean_all(context: TokenContext) -> Weights:
    """Put equal weight on every position.

    In a span, put equal weight on its tokens and those that the tokenizer added.
    """
    return context.mean_of(np.flatnonzero(~context.special | ~context.of_text))
