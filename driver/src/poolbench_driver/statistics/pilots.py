"""What pilots at several sizes say about a comparison: its interval, and the number of examples that it needs."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from poolbench.statistics.inputs import finite_values
from poolbench_driver.statistics.mcnemar import mcnemar_size, mean_power


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


def sign_share(gaps_n: np.ndarray, groups_n: np.ndarray, num_subsamples: int = 1000, seed: int = 0) -> float:
    """Return the share of repeated subsamples whose mean gap has the sign of the mean of all; 0 if this mean is 0.

    A subsample has half of the groups, without replacement.

    Args:
        gaps_n: 1 for an answer that only the second side has right, -1 for one of the first side alone, else 0.
        groups_n: Group of each answer, which subsamples keep whole.
    """
    _, codes_n = np.unique(groups_n, return_inverse=True)
    sums_G = np.bincount(codes_n, gaps_n)
    draws_RG = np.random.default_rng(seed).random((num_subsamples, len(sums_G)))
    drawn_RG = draws_RG.argsort(axis=1) < max(1, len(sums_G) // 2)
    return float(((drawn_RG @ sums_G) * sums_G.sum() > 0).mean())


def recommended_size(
    pilots: Sequence[SizePilot], power: float = 0.8, alpha: float = 0.05, most: int = 10**7
) -> int | None:
    """Return the smallest number of examples, of all splits, from which on the power is at least `power`.

    If the largest size is not enough, its shares are used for every larger size, seed by seed. If the largest size is
    enough, the answer is at most this size, by `size_power`.

    Args:
        pilots: The sizes that were tried, the smallest first, with the same seeds.
        most: Largest number to try.

    Returns:
        None if no number up to `most` is enough.
    """
    largest = pilots[-1]
    if mean_power(largest.shares, round(largest.num_test), alpha) < power:
        num_test = mcnemar_size(largest.shares, power, alpha, most)
        size = None if num_test is None else math.ceil(num_test * largest.size / largest.num_test)
        return None if size is None or size > most else max(size, largest.size + 1)
    too_small = [number for number, pilot in enumerate(pilots[:-1]) if size_power(pilots, pilot.size, alpha) < power]
    last = max(too_small, default=-1)
    low, high = pilots[last].size if last >= 0 else 1, pilots[last + 1].size
    return bisect_left(range(high), True, lo=low, key=lambda size: size_power(pilots, size, alpha) >= power)


def size_power(pilots: Sequence[SizePilot], size: int, alpha: float = 0.05) -> float:
    """Return the power at a number of examples up to the largest pilot.

    The shares p01 and p10 depend on the training size. Between two sizes, they are interpolated over the logarithm of
    the size. Below the smallest size, the shares of the smallest size are used. Shares are means over seeds: small
    samples of several seeds have different examples, and the noise of their shares would make a mean of powers too low.
    For the arguments, see `recommended_size`.
    """
    num_test = max(1, round(size * pilots[-1].num_test / pilots[-1].size))
    sizes = np.log([pilot.size for pilot in pilots])
    shares_S2 = np.array([np.mean(pilot.shares, axis=0) for pilot in pilots])
    p01, p10 = (float(np.interp(math.log(size), sizes, shares_S)) for shares_S in shares_S2.T)
    return mean_power([(p01, p10)], num_test, alpha)
