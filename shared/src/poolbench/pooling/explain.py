"""What each token adds to a pooled vector: its weight, and its part of the projection on a direction."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from poolbench.errors import CellError
from poolbench.pooling.batch import Outcome, Weighing, weigh_layer
from poolbench.pooling.context import Parts, TokenContext, Weights
from poolbench.pooling.signals import Signals
from poolbench.pooling.sinks import LEAVE_OUT, SinkRule
from poolbench.statuses import Status


class TokenShares(NamedTuple):
    """The contribution of each of the T tokens of a passage to the pooled vector.

    Attributes:
        weights_T: Weight of each token. For a reduction, the share of the dimensions whose value comes from the token.
        contributions_T: Part of each token in the projection of the vector. The parts sum to the projection. None
            without a direction.
    """

    weights_T: np.ndarray
    contributions_T: np.ndarray | None


def explain_layer(
    states: Sequence[Tensor],
    weighing: Weighing,
    signals: Sequence[Signals] | None = None,
    sinks: SinkRule = LEAVE_OUT,
    direction_D: np.ndarray | None = None,
) -> list[list[TokenShares | CellError]]:
    """Return the shares of tokens for each passage and strategy, or the error if there are none.

    A weighted strategy gives token t the contribution w_t (h_t . d). In each dimension, a reduction takes the value of
    one token, or the mean of several: equal maxima share the value, and the median of an even number comes from two
    tokens.

    Args:
        direction_D: Direction to project on, of any norm. None leaves contributions out. The other arguments are those
            of `poolbench.pooling.batch.pool_layer`.
    """
    outcomes, contexts, _ = weigh_layer(states, weighing, signals, sinks)
    return [
        [_shares(h_TD.float().cpu().numpy().astype(np.float64), outcome, context, direction_D) for outcome in row]
        for h_TD, row, context in zip(states, outcomes, contexts, strict=True)
    ]


def _shares(
    h_TD: np.ndarray, outcome: Outcome, context: TokenContext, direction_D: np.ndarray | None
) -> TokenShares | CellError:
    if isinstance(outcome, CellError):
        return outcome
    if isinstance(outcome, Parts):
        return CellError(Status.NOT_IMPLEMENTED, "the strategy pools several vectors; labels say which count")
    if isinstance(outcome, Weights):
        contributions_T = None if direction_D is None else outcome.values * (h_TD @ direction_D)
        return TokenShares(outcome.values, contributions_T)
    share_TD = np.zeros_like(h_TD)
    share_TD[context.real] = _won(h_TD[context.real], outcome.op)
    contributions_T = None if direction_D is None else (share_TD * h_TD) @ direction_D
    return TokenShares(share_TD.mean(axis=1), contributions_T)


def _won(h_TD: np.ndarray, op: str) -> np.ndarray:
    """Return the share of each token in the value of each dimension [T, D]; every column sums to 1."""
    if op == "median":
        order_TD = h_TD.argsort(axis=0, kind="stable")
        won_TD = np.zeros_like(h_TD)
        for rank in ((len(h_TD) - 1) // 2, len(h_TD) // 2):  # one token twice where their number is odd
            won_TD[order_TD[rank], np.arange(h_TD.shape[1])] += 0.5
        return won_TD
    best_D = h_TD.max(axis=0) if op == "max" else h_TD.min(axis=0)
    won_TD = (h_TD == best_D).astype(np.float64)
    return np.asarray(won_TD / won_TD.sum(axis=0))
