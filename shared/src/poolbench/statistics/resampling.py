"""Bootstrap weights over groups, and percentile intervals.

A resample is a vector of counts, not of indices. A statistic that accepts weights then takes all resamples as one
matrix, and cells that share groups and seed share their resamples, so that their differences are paired.
"""

import numpy as np

from poolbench.statistics.inputs import StatisticError
from poolbench.statuses import Status

#: Resamples of the blocks of a board.
NUM_RESAMPLES = 1000


def bootstrap_counts(num_units: int, num_resamples: int, seed: int) -> np.ndarray:
    """Return how often each unit is drawn, int [num_resamples, num_units]; rows sum to `num_units`.

    Raise StatisticError `too_few` without a unit.
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

    The members of a group (integers or strings [n]) are drawn together; equal groups and seed give equal resamples.
    Raise StatisticError `too_few` without a unit.
    """
    names, codes = np.unique(groups, return_inverse=True)
    counts = bootstrap_counts(len(names), num_resamples, seed)
    return counts[:, codes].astype(np.float32)


def percentile_interval(samples: np.ndarray, level: float = 0.95) -> tuple[float, float] | None:
    """Return the bounds of bootstrap values [num_resamples]; None if fewer than half of them are finite."""
    finite = samples[np.isfinite(samples)]
    if finite.size * 2 < samples.size or finite.size == 0:
        return None
    tail = 50 * (1 - level)
    low, high = np.percentile(finite, [tail, 100 - tail])
    return float(low), float(high)
