"""What pilots at several sizes say about a comparison: its interval, and the number of examples that it needs."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from poolbench.statistics.inputs import finite_values
from poolbench.statistics.mcnemar import mcnemar_size, mean_power


class SizePilot(NamedTuple):
    """Two configurations compared on samples of one size."""

    size: int  # examples of training, development and test together
    num_test: float  # test examples of a fold
    shares: Sequence[tuple[float, float]]  # by seed, p01 and p10 as in `mcnemar_power`


def rotation_interval(differences: np.ndarray, num_test: float, num_train: float) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean difference over folds in rotation; None below two folds.

    Training sets of folds overlap, so that the variance of the mean is (1 / J + num_test / num_train) s^2 of J
    differences in place of s^2 / J.

    Args:
        differences: Difference of accuracies in every fold of every seed [J].
        num_test: Examples of a test fold.
        num_train: Examples of its training folds.

    Reference: Nadeau & Bengio (2003), "Inference for the generalization error"; Bouckaert & Frank (2004) for folds that
    are repeated under several seeds.
    """
    from scipy import stats

    if len(differences) < 2:
        return None
    sample = finite_values(differences, "differences", minimum=2)
    deviation = math.sqrt((1 / sample.size + num_test / num_train) * sample.var(ddof=1))
    reach = float(stats.t.ppf(0.975, sample.size - 1)) * deviation
    return float(sample.mean()) - reach, float(sample.mean()) + reach


def recommended_size(
    pilots: Sequence[SizePilot], power: float = 0.8, alpha: float = 0.05, most: int = 10**7
) -> int | None:
    """Return the smallest number of examples, of all splits, from which on the power is at least `power`.

    The shares p01 and p10 depend on the training size. Between two sizes that were tried they are interpolated over the
    logarithm of the size, seed by seed; below the smallest and above the largest they are those of that size.

    Args:
        pilots: The sizes that were tried, the smallest first, with the same seeds.
        most: Largest number to try.

    Returns:
        None if no number up to `most` is enough.
    """
    largest = pilots[-1]
    test_share = largest.num_test / largest.size
    if size_power(pilots, largest.size, alpha) < power:
        num_test = mcnemar_size(largest.shares, power, alpha, most)
        size = None if num_test is None else math.ceil(num_test / test_share)
        return None if size is None or size > most else max(size, largest.size + 1)
    too_small = [number for number, pilot in enumerate(pilots) if size_power(pilots, pilot.size, alpha) < power]
    last = max(too_small, default=-1)
    low, high = pilots[last].size if last >= 0 else 1, pilots[last + 1].size
    return bisect_left(range(high), True, lo=low, key=lambda size: size_power(pilots, size, alpha) >= power)


def size_power(pilots: Sequence[SizePilot], size: int, alpha: float = 0.05) -> float:
    """Return the mean power over seeds at a number of examples; arguments as those of `recommended_size`."""
    test_share = pilots[-1].num_test / pilots[-1].size
    num_test = max(1, round(size * test_share))
    sizes = np.log([pilot.size for pilot in pilots])
    shares_SP2 = np.array([pilot.shares for pilot in pilots], dtype=float)
    shares = [
        tuple(float(np.interp(math.log(size), sizes, shares_SP2[:, seed, side])) for side in (0, 1))
        for seed in range(shares_SP2.shape[1])
    ]
    return mean_power([(p01, p10) for p01, p10 in shares], num_test, alpha)
