"""Friedman's test: do treatments differ in rank over blocks?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats


class RankTestResult(NamedTuple):
    """A test statistic with its p-value."""

    statistic: float
    p_value: float


def friedman_test(scores_NK: np.ndarray) -> RankTestResult:
    """Friedman chi-square with correction for ties, over complete blocks.

    Args:
        scores_NK: N blocks by K treatments without NaN.

    Returns:
        Statistic and p-value from the chi-square distribution with K - 1 degrees of freedom; NaN where every
        block is tied throughout.

    Raises:
        ValueError: If there are fewer than 2 blocks or 3 treatments.

    Reference: Friedman (1937); tie correction of Conover, "Practical Nonparametric Statistics", 5.8.
    """
    num_blocks, num_treatments = scores_NK.shape
    if num_blocks < 2 or num_treatments < 3:
        raise ValueError(f"need 2 blocks and 3 treatments, got {num_blocks} and {num_treatments}")
    ranks = stats.rankdata(scores_NK, axis=1)
    between = num_blocks * ((ranks.mean(axis=0) - (num_treatments + 1) / 2) ** 2).sum()
    within = ((ranks - (num_treatments + 1) / 2) ** 2).sum() / (num_blocks * (num_treatments - 1))
    if within == 0:
        return RankTestResult(float("nan"), float("nan"))
    statistic = between / within
    return RankTestResult(float(statistic), float(stats.chi2.sf(statistic, num_treatments - 1)))
