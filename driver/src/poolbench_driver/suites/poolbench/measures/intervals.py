"""Intervals of D2 and D3, corrected for few openings and for the spread of null directions."""

import numpy as np

from poolbench.statistics.bootstrap import percentile_interval


def opening_interval(
    samples: np.ndarray, num_openings: int, num_strata: int = 1, level: float = 0.95
) -> tuple[float, float] | None:
    """Return the expanded percentile interval of bootstrap values over openings [num_resamples].

    A bootstrap of n units drawn within k strata has (n - k) / n of the variance of a mean, and normal instead of
    Student tails: with 10 openings a plain 95 % interval covers 85 to 90 %. The percentiles are moved outwards to
    correct this, which keeps the interval inside the range of the figure.

    Args:
        samples: Bootstrap values; NaN ones are dropped.
        num_openings: Resampled openings, n.
        num_strata: Groups that they were drawn within, k.
        level: Level of the interval.

    Returns:
        The bounds, or None if fewer than half of the resamples have a value.

    Reference: Hesterberg (2015), What teachers should know about the bootstrap (expanded percentiles).
    """
    return percentile_interval(samples, expanded_level(num_openings, num_strata, level))


def expanded_level(num_openings: int, num_strata: int = 1, level: float = 0.95) -> float:
    """Return the level of the percentiles that gives an interval of `level`."""
    from scipy import stats

    return float(2 * stats.norm.cdf(_expansion(num_openings, num_strata, level)) - 1)


def with_direction_spread(
    excess_R: np.ndarray, nulls_NR: np.ndarray, num_openings: int, num_strata: int, seed: int, level: float = 0.95
) -> np.ndarray:
    """Add the spread of directions to the bootstrap values of an excess.

    A direction without meaning has a drift of its own, so two of them differ by more than the openings explain. The
    variance between the null directions beyond that of the openings estimates this drift. A normal error of that
    variance is added to each resample; without drift, nothing is added.

    Args:
        excess_R: Value minus mean of the nulls; entry 0 is the figure, the rest resamples [1 + R].
        nulls_NR: The null directions' values in the same resamples [N, 1 + R].
        num_openings: Resampled openings, drawn within `num_strata`.
        num_strata: Groups that they were drawn within.
        seed: Seed of the errors.
        level: Level of the interval to take.
    """
    from scipy import stats

    num_nulls = len(nulls_NR)
    if num_nulls < 2:
        return excess_R
    noise_NR = nulls_NR[:, 1:] - nulls_NR[:, 1:].mean(axis=0)
    deflated = (num_openings - num_strata) / num_openings * (num_nulls - 1) / num_nulls
    drift = nulls_NR[:, 0].var(ddof=1) - noise_NR.var(axis=1).mean() / deflated
    if not drift > 0:
        return excess_R
    student = stats.t.ppf(0.5 + level / 2, num_nulls - 1) / _expansion(num_openings, num_strata, level)
    errors = np.random.default_rng(seed).normal(size=len(excess_R) - 1)
    scale = np.sqrt(drift * (1 + 1 / num_nulls)) * student
    return np.concatenate([excess_R[:1], excess_R[1:] + scale * errors])


def _expansion(num_openings: int, num_strata: int, level: float) -> float:
    """Return the half-width of the interval in bootstrap standard deviations."""
    from scipy import stats

    freedom = max(num_openings - num_strata, 1)
    return float(np.sqrt(num_openings / freedom) * stats.t.ppf(0.5 + level / 2, freedom))
