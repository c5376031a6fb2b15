"""Strategies that read one position, all real tokens alike, or a contiguous window.

A window longer than the passage takes all of it. The strategy then reports that it did not apply, so that coverage is
the share of passages longer than the window.
"""

from typing import Annotated

import numpy as np
from pydantic import Field

from poolbench.pooling.context import Reduction, TokenContext, Weights
from poolbench.pooling.registry import STRATEGIES

CARD = "PoolBench card, section Strategies"


@STRATEGIES.register("P1_last_token", version=1, family="position", summary="the last real token", reference=CARD)
def last_token(context: TokenContext) -> Weights:
    """Put all weight on the last real token."""
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
    """Put all weight on position 0, which may be a special token.

    If position 0 holds a BOS and attention is causal, the vector is constant.
    """
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
    """Put all weight on the first real token."""
    return context.mean_of(context.real[:1])


@STRATEGIES.register("A1_mean", version=1, family="uniform", summary="arithmetic mean over real tokens", reference=CARD)
def mean(context: TokenContext) -> Weights:
    """Put weight 1/T on every real token."""
    return context.mean_of(context.real)


@STRATEGIES.register(
    "A2_max", version=1, family="uniform", summary="element-wise maximum over real tokens", reference=CARD
)
def maximum(context: TokenContext) -> Reduction:
    """Return the element-wise maximum over the real tokens."""
    return Reduction("max")


@STRATEGIES.register(
    "A3_min", version=1, family="uniform", summary="element-wise minimum over real tokens", reference=CARD
)
def minimum(context: TokenContext) -> Reduction:
    """Return the element-wise minimum over the real tokens."""
    return Reduction("min")


@STRATEGIES.register(
    "A4_norm_weighted",
    version=1,
    family="saliency",
    summary="weight of token t proportional to the L2 norm of h_t",
    needs=("norms",),
    reference=CARD,
)
def norm_weighted(context: TokenContext) -> Weights:
    """Weigh by the L2 norm of the hidden state at this layer."""
    return context.proportional_to(context.require("norms"))


#: How many tokens, or parts, of a passage; more than it has means all of it.
NumTokens = Annotated[int, Field(ge=1, le=100_000)]
NumParts = Annotated[int, Field(ge=1, le=1_000)]


def _window(context: TokenContext, selected: np.ndarray, k: int) -> Weights:
    return context.mean_of(selected, applied=len(context.real) > k)


@STRATEGIES.register("W1_first_k", version=1, family="window", summary="mean of the first k tokens", reference=CARD)
def first_k(context: TokenContext, *, k: NumTokens = 16) -> Weights:
    """Average the first `k` real tokens."""
    return _window(context, context.real[:k], k)


@STRATEGIES.register("W2_last_k", version=1, family="window", summary="mean of the last k tokens", reference=CARD)
def last_k(context: TokenContext, *, k: NumTokens = 16) -> Weights:
    """Average the last `k` real tokens."""
    return _window(context, context.real[-k:], k)


@STRATEGIES.register(
    "W3_middle_k", version=1, family="window", summary="mean of the k tokens in the middle", reference=CARD
)
def middle_k(context: TokenContext, *, k: NumTokens = 16) -> Weights:
    """Average the `k` real tokens in the middle.

    If they cannot be centred exactly, one more token is left out on the right.
    """
    start = max(0, (len(context.real) - k) // 2)
    return _window(context, context.real[start : start + k], k)


@STRATEGIES.register(
    "W4_hierarchical",
    version=1,
    family="window",
    summary="mean of the means of 4 chunks whose lengths differ by at most one",
    reference=CARD + "; the reference code makes a further chunk of the remainder of T / 4, as `remainder` does",
    switches=("remainder",),
)
def hierarchical(context: TokenContext, *, chunks: NumParts = 4, remainder: bool = False) -> Weights:
    """Average the means of chunks. If the tokens do not divide evenly, the first chunks are longer by one token.

    With `remainder`, chunks have T // `chunks` tokens and the rest is a further chunk, as in the reference. This chunk
    weighs as much as the others: the single last token of 401 gets a fifth of the weight.
    """
    size = max(1, len(context.real) // chunks)
    starts = range(size, len(context.real), size)
    parts = np.split(context.real, starts) if remainder else np.array_split(context.real, chunks)
    return context.mean_of_means(parts, applied=len(context.real) >= chunks)
