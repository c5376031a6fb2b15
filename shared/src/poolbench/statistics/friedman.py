"""Friedman's test: do treatments differ in rank over blocks?"""

import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from poolbench.statistics.inputs import complete_blocks


class RankTestResult(NamedTuple):
    """A test statistic with its p-value."""

    statistic: float
    p_value: float


def friedman_test(scores_NK: np.ndarray) -> RankTestResult:
    """Return Friedman's chi-square with correction for ties.

    Args:
        scores_NK: N blocks by K treatments without NaN.

    Returns:
        Statistic and p-value from the chi-square distribution with K - 1 degrees of freedom; NaN if all blocks tie all
        treatments.

    Raises:
        StatisticError: `too_few` below 2 blocks or 3 treatments, `non_finite` if a score is NaN.

    Reference: Friedman (1937); tie correction of Conover, "Practical Nonparametric Statistics", 5.8.
    """
    scores = complete_blocks(scores_NK)
    if (scores == scores[:, :1]).all():
        return RankTestResult(math.nan, math.nan)
    found = stats.friedmanchisquare(*scores.T)
    return RankTestResult(float(found.statistic), float(found.pvalue))


def iman_davenport_test(scores_NK: np.ndarray) -> RankTestResult:
    """Return Iman and Davenport's F from Friedman's chi-square, which is less conservative.

    Args:
        scores_NK: N blocks by K treatments without NaN.

    Returns:
        Statistic and p-value from the F distribution with K - 1 and (K - 1)(N - 1) degrees of freedom. If all blocks
        agree, the statistic is infinite and the p-value exact: the chance that the other blocks repeat the order of the
        first. NaN if all blocks tie all treatments.

    Raises:
        StatisticError: As `friedman_test`.

    Reference: Iman & Davenport (1980), "Approximations of the critical region of the Friedman statistic".
    """
    chi_square = friedman_test(scores_NK).statistic
    num_blocks, num_treatments = np.shape(scores_NK)
    freedom = num_treatments - 1
    left = num_blocks * freedom - chi_square
    if math.isnan(left):
        return RankTestResult(math.nan, math.nan)
    if left <= 1e-9 * num_blocks * freedom:
        return RankTestResult(math.inf, math.exp((1 - num_blocks) * _log_orders(np.asarray(scores_NK)[0])))
    statistic = (num_blocks - 1) * chi_square / left
    return RankTestResult(float(statistic), float(stats.f.sf(statistic, freedom, freedom * (num_blocks - 1))))


def _log_orders(scores: np.ndarray) -> float:
    """Return the log of the number of distinct orders of one block's ranks; tied treatments count once."""
    ties = np.unique(scores, return_counts=True)[1]
    return math.lgamma(len(scores) + 1) - sum(math.lgamma(count + 1) for count in ties.tolist())
