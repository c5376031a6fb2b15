"""Bootstrap over groups: weights, means and percentile intervals; and Student's interval for a handful of seeds.

A resample is a vector of counts, not of indices. A statistic that accepts weights then takes all resamples as one
matrix, and cells that share groups and seed share their resamples, so that their differences are paired."""

import math

import numpy as np

from poolbench.statistics.inputs import StatisticError, finite_values
from poolbench.statuses import Status

#: Resamples of the blocks of a board.
NUM_RESAMPLES = 1000


def bootstrap_counts(num_units: int, num_resamples: int, seed: int) -> np.ndarray:
    """Return how often each unit is drawn, int [num_resamples, num_units]. Each row sums to `num_units`.

    Raise StatisticError `too_few` if there is no unit.
    """
    if num_units < 1:
        raise StatisticError(Status.TOO_FEW, "nothing to resample: there is no unit")
    rng = np.random.default_rng(seed)
    draws = rng.integers(0, num_units, size=(num_resamples, num_units))
    offsets = np.arange(num_resamples)[:, None] * num_units
    flat = np.bincount((draws + offsets).ravel(), minlength=num_resamples * num_units)
    return flat.reshape(num_resamples, num_units)


def group_weights(groups: np.ndarray, num_resamples: int, seed: int) -> np.ndarray:
    """Return the weights of the units under a bootstrap over their groups, float32 [num_resamples, n].

    The members of a group (integers or strings [n]) are drawn together. Equal groups and an equal seed give equal
    resamples. Raise StatisticError `too_few` if there is no unit.
    """
    names, codes = np.unique(groups, return_inverse=True)
    counts = bootstrap_counts(len(names), num_resamples, seed)
    return counts[:, codes].astype(np.float32)


def percentile_interval(samples: np.ndarray, level: float = 0.95) -> tuple[float, float] | None:
    """Return the percentile interval of bootstrap values [num_resamples], or None if under half of them are finite."""
    finite = samples[np.isfinite(samples)]
    if finite.size * 2 < samples.size or finite.size == 0:
        return None
    tail = 50 * (1 - level)
    low, high = np.percentile(finite, [tail, 100 - tail])
    return float(low), float(high)


def group_mean_resamples(
    values_nC: np.ndarray, groups: np.ndarray | None = None, *, num_resamples: int = 1000, seed: int = 0
) -> np.ndarray:
    """Return the mean of each of C cells under a bootstrap over groups [num_resamples, C].

    A group counts with all of its members that have a value, so groups may differ in size. All cells share their
    resamples, so differences of cells are paired.

    Args:
        values_nC: n units by C cells. NaN means that the unit is missing.
        groups: Group of each unit [n]; by default each unit is a group.
        num_resamples: Number of resamples.
        seed: Seed. Equal groups and an equal seed give equal resamples.

    Returns:
        Means. If a resample has no value of a cell, its mean is NaN.

    Raises:
        StatisticError: `too_few` if there is no unit, `non_finite` if a value is infinite, or `failed` if a unit has no
            group.
    """
    values = np.asarray(values_nC, dtype=np.float64)
    if values.ndim != 2 or len(values) == 0:
        raise StatisticError(Status.TOO_FEW, f"values must be units by cells, got shape {values.shape}")
    if np.isinf(values).any():
        raise StatisticError(Status.NON_FINITE, f"{int(np.isinf(values).sum())} values are infinite: they have no mean")
    if groups is not None and len(groups) != len(values):
        raise StatisticError(Status.FAILED, f"{len(groups)} groups for {len(values)} units")
    codes = np.arange(len(values)) if groups is None else np.unique(groups, return_inverse=True)[1]
    num_groups = int(codes.max()) + 1
    present = ~np.isnan(values)
    sums_GC, counts_GC = np.zeros((2, num_groups, values.shape[1]))
    np.add.at(sums_GC, codes, np.where(present, values, 0.0))
    np.add.at(counts_GC, codes, present)
    weights_RG = bootstrap_counts(num_groups, num_resamples, seed).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (weights_RG @ sums_GC) / (weights_RG @ counts_GC)


def mean_interval(values: np.ndarray, *, num_resamples: int = 1000, seed: int = 0) -> tuple[float, float] | None:
    """Return the percentile interval of the mean of `values` [n] under a bootstrap, or None for under two values."""
    column = np.asarray(values, dtype=np.float64).reshape(-1, 1)
    samples = group_mean_resamples(column, num_resamples=num_resamples, seed=seed)
    return percentile_interval(samples[:, 0]) if (~np.isnan(column)).sum() > 1 else None


def t_interval(values: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of the mean of `values` [n], which are assumed normal with unknown variance.

    Raise StatisticError `too_few` for fewer than 2 values, or `non_finite` if a value is NaN or infinite.

    Reference: Student (1908), "The probable error of a mean".
    """
    from scipy import stats

    sample = finite_values(values, "values", minimum=2)
    reach = stats.t.ppf(0.975, sample.size - 1) * sample.std(ddof=1) / math.sqrt(sample.size)
    return float(sample.mean() - reach), float(sample.mean() + reach)
