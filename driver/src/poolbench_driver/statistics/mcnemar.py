"""McNemar's exact test of two classifiers on the same passages, its power, and its type-M and type-S errors."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from poolbench.statistics.inputs import StatisticError
from poolbench.statuses import Status

#: Numbers of discordant pairs are counted one by one: their spread, some root of the passages, must fit in memory.
MAX_PASSAGES = 10**9
#: Power from which on a comparison counts as decided.
SUFFICIENT = 0.8


class McNemarPower(NamedTuple):
    """Power of McNemar's test."""

    power: float  # probability of a significant difference of the right sign
    type_m: float  # mean of |estimated difference| over the true one, given significance: the exaggeration
    type_s: float  # probability of the wrong sign, given significance


def mcnemar_test(only_first: np.ndarray | int, only_second: np.ndarray | int) -> np.ndarray:
    """Return the two-sided p-values of McNemar's exact test; 1 without a discordant pair.

    Args:
        only_first: Numbers of passages that only the first classifier labels correctly.
        only_second: Numbers of passages that only the second classifier labels correctly, of the same shape.

    Raises:
        ValueError: A number is negative.

    Reference: McNemar (1947), "Note on the sampling error of the difference between correlated proportions", in its
    exact form: of the discordant pairs, the number in favour of the first is binomial at even odds.
    """
    from scipy import stats

    first, second = np.asarray(only_first), np.asarray(only_second)
    if (first < 0).any() or (second < 0).any():
        raise ValueError("numbers of discordant pairs are counts, and one is negative")
    return np.minimum(1.0, 2 * stats.binom.cdf(np.minimum(first, second), first + second, 0.5))


def mcnemar_power(p01: float, p10: float, n: int, alpha: float = 0.05) -> McNemarPower:
    """Return power, type-M and type-S error of the exact two-sided test, by enumeration over the discordant pairs.

    The number of discordant pairs m is binomial (n, p01 + p10). Of these, the number in favour of the second classifier
    is binomial (m, p01 / (p01 + p10)), and significance is a tail of it.

    Args:
        p01: Probability that a passage is wrong for the first and right for the second classifier.
        p10: Probability of the opposite.
        n: Number of passages.
        alpha: Level of the test.

    Returns:
        The power; type-M and type-S are NaN if significance is impossible.

    Raises:
        ValueError: A probability or the level is out of range, or there are more than `MAX_PASSAGES`.
        StatisticError: `no_effect` if p01 equals p10, `too_few` without a passage.

    Reference: Card et al. (2020), "With little power comes great responsibility"; Gelman & Carlin (2014), "Beyond
    power calculations", for type-M and type-S.
    """
    from scipy import stats

    if not (0 <= p01 <= 1 and 0 <= p10 <= 1 and p01 + p10 <= 1):
        raise ValueError(f"p01 and p10 are probabilities with a sum of at most 1, got {p01} and {p10}")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, got {alpha}")
    if n < 1:
        raise StatisticError(Status.TOO_FEW, f"need at least one passage, got {n}")
    if n > MAX_PASSAGES:
        raise ValueError(f"power is counted for up to {MAX_PASSAGES:,} passages, got {n:,}")
    if p01 == p10:
        raise StatisticError(Status.NO_EFFECT, f"p01 and p10 are both {p01}: without a difference there is no power")
    # The possible numbers of discordant pairs and their probabilities; the rest is below 1e-15.
    low, high = stats.binom.ppf(5e-16, n, p01 + p10), stats.binom.isf(5e-16, n, p01 + p10)
    pairs = np.arange(max(int(low), 0), min(int(high) + 1, n) + 1)
    chance = stats.binom.pmf(pairs, n, p01 + p10)
    # The smallest count c of m pairs with 2 P(X >= c) <= alpha at even odds; m + 1 if there is none.
    critical = stats.binom.isf(alpha / 2, pairs, 0.5) + 1
    share = max(p01, p10) / (p01 + p10)
    right_M, right_excess_M = _upper_tail(pairs, critical, share)
    wrong_M, wrong_excess_M = _upper_tail(pairs, critical, 1 - share)
    right, wrong = float(chance @ right_M), float(chance @ wrong_M)
    if right + wrong == 0:
        return McNemarPower(0.0, math.nan, math.nan)
    estimate = float(chance @ (right_excess_M + wrong_excess_M)) / n / (right + wrong)
    return McNemarPower(right, estimate / abs(p01 - p10), wrong / (right + wrong))


def _upper_tail(pairs: np.ndarray, critical: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return P(X >= c) and E[(2 X - m) 1(X >= c)] of X binomial (m, share).

    The second follows from E[X 1(X >= c)] = m p P(X' >= c - 1) with X' binomial (m - 1, share).
    """
    from scipy import stats

    tail = stats.binom.sf(critical - 1, pairs, share)
    fewer = stats.binom.sf(critical - 2, np.maximum(pairs - 1, 0), share)
    return tail, 2 * pairs * share * fewer - pairs * tail


def shares_of(difference: float, discordance: float) -> tuple[float, float]:
    """Return p01 and p10 of a difference p01 - p10 that is planned for, at a discordance p01 + p10 that was observed.

    A difference cannot be larger than the discordance, which is then taken as large.
    """
    discordant = max(discordance, abs(difference))
    return (discordant + difference) / 2, (discordant - difference) / 2


def mcnemar_size(
    shares: Sequence[tuple[float, float]], power: float = 0.8, alpha: float = 0.05, most: int = 10**7
) -> int | None:
    """Return the smallest number of passages at which the mean power over several pilots is at least `power`.

    A bisection relies on power that rises with the number of passages. Where nearly all passages are discordant, it
    also falls at each step of the exact test's critical value, so the numbers just below are tried one by one.

    Args:
        shares: p01 and p10 of each pilot, as in `mcnemar_power`. A pilot whose difference is 0, or has the opposite
            sign of the overall difference, has no power at any size.
        most: Largest number to try.

    Returns:
        None if no number up to `most` is enough.
    """
    right_sign = [pair for pair, is_right in zip(shares, of_one_sign(shares), strict=True) if is_right]
    if not 0 < power < 1:
        raise ValueError(f"a power lies between 0 and 1, got {power}")
    if len(right_sign) <= power * len(shares):
        return None

    def is_enough(n: int) -> bool:
        return sum(mcnemar_power(*pair, n, alpha).power for pair in right_sign) >= power * len(shares)

    enough = 1
    while not is_enough(enough):
        if enough >= most:
            return None
        enough = min(8 * enough, most)
    monotone_n = bisect_left(range(enough), True, lo=1, key=is_enough)
    # The steps are at most 2 sqrt(n) apart in n. A spread of 2 in the number of discordant pairs smooths them out.
    variances = [monotone_n * (p01 + p10) * (1 - p01 - p10) for p01, p10 in right_sign]
    first = max(1, monotone_n - 2 * math.isqrt(monotone_n) - 2) if min(variances) < 4 else monotone_n
    return next(n for n in range(first, monotone_n + 1) if is_enough(n))


def mean_power(shares: Sequence[tuple[float, float]], n: int, alpha: float = 0.05) -> float:
    """Return the mean power over several pilots at `n` passages. For the arguments, see `mcnemar_size`."""
    pairs = zip(shares, of_one_sign(shares), strict=True)
    return sum(mcnemar_power(*pair, n, alpha).power for pair, is_right in pairs if is_right) / len(shares)


def of_one_sign(shares: Sequence[tuple[float, float]]) -> list[bool]:
    """Return whether each pilot's difference has the sign of the overall difference. Other pilots have no power."""
    sign = np.sign(sum(p01 - p10 for p01, p10 in shares))
    return [(p01 - p10) * sign > 0 for p01, p10 in shares]
