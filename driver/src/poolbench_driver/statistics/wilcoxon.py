"""Wilcoxon's signed-rank test of paired differences, with an effect size."""

import math
from typing import NamedTuple

import numpy as np

from poolbench.statistics.inputs import finite_values

#: Up to this many non-zero differences the null distribution is counted, beyond it is approximated.
MAX_EXACT = 50


class WilcoxonResult(NamedTuple):
    """Two-sided p-value, and matched-pairs rank-biserial correlation."""

    p_value: float
    effect: float


def wilcoxon_test(differences: np.ndarray) -> WilcoxonResult:
    """Test two-sided that `differences` [n] are symmetric about 0.

    The p-value is exact up to 50 non-zero differences, with or without ties: given the ranks, every pattern of signs
    is equally likely, and their sums are counted. Beyond that it is the normal approximation with the variance of the
    ranks themselves. The effect size is (W+ - W-) / (W+ + W-), from -1 to 1.

    Zeros are ranked with the rest, and then their ranks are left out (Pratt's rule), so that blocks without a
    difference weaken the small differences.

    Args:
        differences: First minus second of each block; infinite if one side takes the worst rank.

    Returns:
        The result; without a non-zero difference p is 1 and the effect 0.

    Raises:
        StatisticError: `too_few` without a block, `non_finite` if a difference is NaN.

    Reference: Wilcoxon (1945); Pratt (1959), "Remarks on zeros and ties"; Kerby (2014), "The simple difference
    formula", for the effect size.
    """
    from scipy import stats

    values = finite_values(differences, "differences", allow_infinite=True)
    nonzero = values != 0
    if not nonzero.any():
        return WilcoxonResult(1.0, 0.0)
    ranks = stats.rankdata(np.abs(values))[nonzero]
    positive = float(ranks[values[nonzero] > 0].sum())
    effect = float(2 * positive / ranks.sum() - 1)
    p_value = _exact_p(ranks, positive) if len(ranks) <= MAX_EXACT else _normal_p(ranks, positive)
    return WilcoxonResult(p_value, effect)


def least_p(num_blocks: int) -> float:
    """Return the least p of two-sided tests that flip signs: the Wilcoxon, sign and permutation tests."""
    return min(1.0, 2.0 ** (1 - num_blocks))


def _exact_p(ranks: np.ndarray, positive: float) -> float:
    """Return the two-sided p of the positive ranks' sum over all sign patterns.

    Average ranks are multiples of one half, so doubled ranks are whole and their sums can be counted one rank at a
    time: probability [s] is that of a doubled sum of s.
    """
    doubled = np.rint(2 * ranks).astype(int)
    total = int(doubled.sum())
    probability = np.zeros(total + 1)
    probability[0] = 1.0
    for rank in doubled:
        shifted = np.zeros_like(probability)
        shifted[rank:] = probability[: total + 1 - rank]
        probability = (probability + shifted) / 2
    smaller = min(round(2 * positive), total - round(2 * positive))
    return min(1.0, float(2 * probability[: smaller + 1].sum()))


def _normal_p(ranks: np.ndarray, positive: float) -> float:
    """Return the two-sided p of the normal approximation. The variance under random signs is exact for ties too."""
    from scipy import stats

    z = (positive - ranks.sum() / 2) / math.sqrt(float((ranks**2).sum()) / 4)
    return float(2 * stats.norm.sf(abs(z)))
