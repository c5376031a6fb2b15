"""Power of the paired t-test, and how many pairs it needs."""

import math
from bisect import bisect_left

from poolbench.statistics.inputs import StatisticError
from poolbench.statuses import Status

#: Above this noncentrality the power is 1 in double precision, and SciPy's distribution loses its digits.
_CERTAIN = 1e6


def paired_power(effect: float, n: int, alpha: float = 0.05) -> float:
    """Return the power of the two-sided paired t-test to find a difference of the right sign.

    Under normal differences the statistic has a noncentral t distribution with n - 1 degrees of freedom and
    noncentrality effect * sqrt(n).

    Args:
        effect: Mean of the differences over their standard deviation; infinite if they are all equal. Its sign does
            not matter.
        n: Number of pairs.
        alpha: Level of the test.

    Raises:
        ValueError: The level is out of range.
        StatisticError: `too_few` below two pairs, `no_effect` if the effect is 0.

    Reference: Cohen (1988), "Statistical power analysis for the behavioral sciences", chapter 2.
    """
    from scipy import stats

    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, got {alpha}")
    if n < 2:
        raise StatisticError(Status.TOO_FEW, f"a paired test needs two pairs or more, got {n}")
    if effect == 0:
        raise StatisticError(Status.NO_EFFECT, "the mean difference is 0: without a difference there is no power")
    noncentrality = abs(effect) * math.sqrt(n)
    if noncentrality > _CERTAIN:
        return 1.0
    return float(stats.nct.sf(stats.t.isf(alpha / 2, n - 1), n - 1, noncentrality))


def paired_size(effect: float, power: float = 0.8, alpha: float = 0.05, most: int = 10_000) -> int | None:
    """Return the smallest number of pairs at which `paired_power` is at least `power`, or None above `most`."""
    if not 0 < power < 1:
        raise ValueError(f"a power lies between 0 and 1, got {power}")
    size = bisect_left(range(most + 1), True, lo=2, key=lambda n: paired_power(effect, n, alpha) >= power)
    return size if size <= most else None
