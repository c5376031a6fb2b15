"""Strategies that read a single position."""

import numpy as np

from poolbench.pooling.context import TokenContext, Weights
from poolbench.pooling.registry import STRATEGIES

CARD = "PoolBench card, section Strategies"


@STRATEGIES.register("P1_last_token", version=1, family="position", summary="the last real token", reference=CARD)
def last_token(context: TokenContext) -> Weights:
    """All weight on the last real token."""
    return context.mean_of(context.real[-1:])


@STRATEGIES.register(
    "P2_first_token",
    version=1,
    family="position",
    summary="position 0, the BOS token where the tokenizer adds one",
    reference=CARD,
    collapses_with_bos=True,
)
def first_token(context: TokenContext) -> Weights:
    """All weight on position 0, special or not; constant under causal attention when it is BOS."""
    return context.mean_of(np.zeros(1, dtype=np.int64))


@STRATEGIES.register(
    "P3_first_content",
    version=1,
    family="position",
    summary="the first real token, after any special ones",
    reference="control for P2_first_token: the same place without BOS",
    board="extended",
)
def first_content(context: TokenContext) -> Weights:
    """All weight on the first real token."""
    return context.mean_of(context.real[:1])
