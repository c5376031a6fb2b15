"""Nemenyi's test of all pairs of treatments, its critical difference, and groups without a significant difference."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy import stats

from poolbench.statistics.inputs import StatisticError, complete_blocks
from poolbench.statuses import Status


@lru_cache(maxsize=256)
def nemenyi_quantile(num_treatments: int, alpha: float = 0.05) -> float:
    """Return the upper quantile of the studentized range with infinite degrees of freedom, over the root of 2.

    Reference: Demsar (2006), "Statistical comparisons of classifiers over multiple data sets", table 5.
    """
    return float(stats.studentized_range.isf(alpha, num_treatments, math.inf)) / math.sqrt(2)


def nemenyi_critical_difference(num_treatments: int, num_blocks: int, alpha: float = 0.05) -> float:
    """Return the smallest difference of two mean ranks that is significant at `alpha` over all pairs.

    Reference: Demsar (2006), eq. before table 5: q sqrt(k (k + 1) / (6 N)).

    Raises:
        StatisticError: `too_few` below 2 treatments or without a block.
        ValueError: `alpha` is not between 0 and 1.
    """
    if num_treatments < 2 or num_blocks < 1:
        raise StatisticError(
            Status.TOO_FEW, f"need at least 2 treatments and 1 block, got {num_treatments} and {num_blocks}"
        )
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, got {alpha}")
    return nemenyi_quantile(num_treatments, alpha) * _standard_error(num_treatments, num_blocks)


def nemenyi_test(scores_NK: np.ndarray) -> np.ndarray:
    """Return the p-value of each pair of treatments, corrected for all pairs, [K, K] with ones on the diagonal.

    Args:
        scores_NK: N blocks by K treatments without NaN.

    Raises:
        StatisticError: `too_few` below 2 blocks or treatments, `non_finite` if a score is NaN.

    Reference: Nemenyi (1963), "Distribution-free multiple comparisons"; Demsar (2006).
    """
    scores = complete_blocks(scores_NK, min_treatments=2)
    num_blocks, num_treatments = scores.shape
    means = stats.rankdata(scores, axis=1).mean(axis=0)
    ranges = np.abs(means[:, None] - means) / _standard_error(num_treatments, num_blocks) * math.sqrt(2)
    p_values = np.ones_like(ranges)
    above = np.triu_indices(num_treatments, 1)
    p_values[above] = stats.studentized_range.sf(ranges[above], num_treatments, math.inf)
    return np.minimum(np.minimum(p_values, p_values.T), 1.0)


def tie_groups(mean_ranks: Sequence[float] | np.ndarray, critical_difference: float) -> list[tuple[int, ...]]:
    """Return the largest sets of treatments in which no two differ by the critical difference: the bars of the diagram.

    Args:
        mean_ranks: Mean rank of each treatment [K]; NaN belongs to no group.
        critical_difference: Smallest significant difference.

    Returns:
        Indices into `mean_ranks`, best first; a treatment that differs from all others is a group of its own.
    """
    ranks = np.asarray(mean_ranks, dtype=np.float64)
    order = [int(k) for k in np.argsort(ranks, kind="stable") if not math.isnan(ranks[k])]
    groups: list[tuple[int, ...]] = []
    reached = 0
    for start, best in enumerate(order):
        stop = start + sum(bool(ranks[k] - ranks[best] < critical_difference) for k in order[start:])
        if stop > reached:  # else the group lies inside the one before
            groups.append(tuple(order[start:stop]))
            reached = stop
    return groups


def _standard_error(num_treatments: int, num_blocks: int) -> float:
    return math.sqrt(num_treatments * (num_treatments + 1) / (6 * num_blocks))
