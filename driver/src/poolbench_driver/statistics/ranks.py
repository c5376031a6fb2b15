"""Ranks of treatments within blocks: means with intervals, and the tests of Friedman, Iman-Davenport and Nemenyi."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from poolbench.statistics.bootstrap import NUM_RESAMPLES, bootstrap_counts, percentile_interval
from poolbench.statistics.inputs import StatisticError, complete_blocks
from poolbench.statuses import Status


def block_ranks(scores_NK: np.ndarray, *, higher_is_better: bool = True) -> np.ndarray:
    """Return the ranks of K treatments in each of N blocks. Rank 1 is best, ties share their mean rank, NaN stays NaN.

    A value of -inf (+inf if lower is better) takes the worst rank, which all such values share.
    """
    from scipy import stats

    signed = -scores_NK if higher_is_better else scores_NK
    return stats.rankdata(signed, axis=1, nan_policy="omit")


def mean_ranks(ranks_NK: np.ndarray, weights_RN: np.ndarray | None = None) -> np.ndarray:
    """Return the mean rank of each treatment over the blocks that rank it, [K] or [R, K] with block weights."""
    present = np.isfinite(ranks_NK)
    weights = np.ones((1, len(ranks_NK))) if weights_RN is None else weights_RN
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (weights @ np.where(present, ranks_NK, 0.0)) / (weights @ present.astype(float))
    return means[0] if weights_RN is None else means


def best_first(means_K: np.ndarray, counts_K: np.ndarray) -> list[int]:
    """Return the places of K treatments, the lowest mean first.

    Means over different numbers of blocks are not comparable. Therefore, treatments with fewer blocks come after
    treatments with more blocks. Treatments without a mean (NaN) come last.

    Args:
        means_K: Mean of each treatment.
        counts_K: Number of blocks of each mean.
    """
    return [int(place) for place in np.lexsort((means_K, -np.asarray(counts_K), np.isnan(means_K)))]


def complete_ranks(ranks_NK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ranks of the blocks in which no treatment is missing, and which treatments these are, bool [K].

    A treatment without a rank in any block is left out: otherwise no block would be complete.
    """
    ranked_K = np.isfinite(ranks_NK).any(axis=0)
    ranks = ranks_NK[:, ranked_K]
    return ranks[np.isfinite(ranks).all(axis=1)], ranked_K


def mean_rank_intervals(
    ranks_NK: np.ndarray, *, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> list[tuple[float, float] | None]:
    """Return the percentile interval of each mean rank under a bootstrap over blocks; None below two blocks."""
    samples = mean_ranks(ranks_NK, bootstrap_counts(len(ranks_NK), num_resamples, seed).astype(float))
    enough = np.isfinite(ranks_NK).sum(axis=0) >= 2
    return [percentile_interval(s) if has_interval else None for s, has_interval in zip(samples.T, enough, strict=True)]


@lru_cache(maxsize=256)
def nemenyi_quantile(num_treatments: int, alpha: float = 0.05) -> float:
    """Return the upper quantile of the studentized range with infinite degrees of freedom, over the root of 2.

    Reference: Demsar (2006), "Statistical comparisons of classifiers over multiple data sets", table 5.
    """
    from scipy import stats

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
    """Return the p-value of each pair over complete blocks, corrected for all pairs, [K, K] with ones on the diagonal.

    Raises:
        StatisticError: `too_few` below 2 blocks or treatments, `non_finite` if a score is NaN.

    Reference: Nemenyi (1963), "Distribution-free multiple comparisons"; Demsar (2006).
    """
    from scipy import stats

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

    The sets are indices into `mean_ranks` [K], best first. NaN belongs to no set. A treatment that differs from all
    others is a group of its own.
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


class RankTestResult(NamedTuple):
    """A test statistic with its p-value."""

    statistic: float
    p_value: float


def friedman_test(scores_NK: np.ndarray) -> RankTestResult:
    """Return Friedman's chi-square over complete blocks, with correction for ties.

    The p-value comes from the chi-square distribution with K - 1 degrees of freedom. Both are NaN if all blocks tie all
    treatments.

    Raises:
        StatisticError: `too_few` below 2 blocks or 3 treatments, `non_finite` if a score is NaN.

    Reference: Friedman (1937); tie correction of Conover, "Practical Nonparametric Statistics", 5.8.
    """
    from scipy import stats

    scores = complete_blocks(scores_NK)
    if (scores == scores[:, :1]).all():
        return RankTestResult(math.nan, math.nan)
    friedman = stats.friedmanchisquare(*scores.T)
    return RankTestResult(float(friedman.statistic), float(friedman.pvalue))


def iman_davenport_test(scores_NK: np.ndarray) -> RankTestResult:
    """Return Iman and Davenport's F from Friedman's chi-square, which is less conservative.

    The p-value comes from the F distribution with K - 1 and (K - 1)(N - 1) degrees of freedom. If all blocks agree, the
    statistic is infinite, and the p-value is the exact chance that all other blocks repeat the order of the first
    block. Both are NaN if all blocks tie all treatments.

    Raises:
        StatisticError: As in `friedman_test`.

    Reference: Iman & Davenport (1980), "Approximations of the critical region of the Friedman statistic".
    """
    from scipy import stats

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
