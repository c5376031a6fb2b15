"""Strategies over contiguous windows of real tokens.

A window longer than the passage takes all of it; the strategy then says that it did not apply, so that
coverage is the share of passages longer than the window.
"""

from typing import Annotated

import numpy as np
from pydantic import Field

from poolbench.pooling.context import TokenContext, Weights
from poolbench.pooling.position import CARD
from poolbench.pooling.registry import STRATEGIES

#: How many tokens, or parts, of a passage; more than it has means all of it.
NumTokens = Annotated[int, Field(ge=1, le=100_000)]
NumParts = Annotated[int, Field(ge=1, le=1_000)]


def _window(context: TokenContext, selected: np.ndarray, k: int) -> Weights:
    return context.mean_of(selected, applied=len(context.real) > k)


@STRATEGIES.register("W1_first_k", version=1, family="window", summary="mean of the first k tokens", reference=CARD)
def first_k(context: TokenContext, *, k: NumTokens = 16) -> Weights:
    """Mean of the first ``k`` real tokens."""
    return _window(context, context.real[:k], k)


@STRATEGIES.register("W2_last_k", version=1, family="window", summary="mean of the last k tokens", reference=CARD)
def last_k(context: TokenContext, *, k: NumTokens = 16) -> Weights:
    """Mean of the last ``k`` real tokens."""
    return _window(context, context.real[-k:], k)


@STRATEGIES.register("W3_middle_k", version=1, family="window", summary="mean of the centred k tokens", reference=CARD)
def middle_k(context: TokenContext, *, k: NumTokens = 16) -> Weights:
    """Mean of the ``k`` centred real tokens; the odd one out lies on the right."""
    start = max(0, (len(context.real) - k) // 2)
    return _window(context, context.real[start : start + k], k)


@STRATEGIES.register(
    "W4_hierarchical",
    version=1,
    family="window",
    summary="mean of the means of 4 chunks whose lengths differ by at most one",
    reference=CARD + "; the reference code loses the remainder of T / 4, this does not",
)
def hierarchical(context: TokenContext, *, chunks: NumParts = 4) -> Weights:
    """Mean of chunk means; the first chunks take the remainder."""
    parts = np.array_split(context.real, chunks)
    return context.mean_of_means(parts, applied=len(context.real) >= chunks)
