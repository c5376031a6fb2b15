"""What pilots at several sizes recommend, against a search over all sizes and a hand computation."""

import math

import numpy as np
import pytest
from scipy import stats

from poolbench.statistics.inputs import StatisticError
from poolbench.statistics.mcnemar import mcnemar_power, mcnemar_size, mean_power
from poolbench.statistics.pilots import SizePilot, recommended_size, rotation_interval, size_power


def pilots(*sizes: tuple[int, list[tuple[float, float]]]) -> list[SizePilot]:
    return [SizePilot(size, size / 6, shares) for size, shares in sizes]


def test_the_power_is_the_mean_over_seeds_and_a_seed_of_another_sign_has_none() -> None:
    shares = [(0.2, 0.1), (0.15, 0.1), (0.1, 0.12)]
    expected = (mcnemar_power(0.2, 0.1, 200).power + mcnemar_power(0.15, 0.1, 200).power) / 3
    assert mean_power(shares, 200) == pytest.approx(expected)
    assert mean_power([(0.1, 0.1)], 200) == 0.0


def test_outside_of_the_sizes_the_shares_of_the_nearest_one_count() -> None:
    shares = [(0.2, 0.12)] * 5
    found = recommended_size(pilots((100, [(0.5, 0.5)] * 5), (600, shares)))
    assert found == 6 * mcnemar_size(shares) == 2466
    assert found is not None and size_power(pilots((600, shares)), found) >= 0.8
    assert size_power(pilots((600, shares)), found - 6) < 0.8
    tried = pilots((3000, [(0.4, 0.1)] * 2), (6000, [(0.4, 0.1)] * 2))
    found = recommended_size(tried)
    assert found is not None and found < 3000
    assert found == pytest.approx(6 * mcnemar_size([(0.4, 0.1)]), abs=6)


def test_between_two_sizes_shares_are_interpolated_over_the_logarithm() -> None:
    tried = pilots((300, [(0.2, 0.12), (0.25, 0.14)]), (4800, [(0.3, 0.12), (0.35, 0.14)]))
    halfway = [(0.275, 0.13)]  # the mean over seeds, at 1200: 300 x 4 = 4800 / 4
    assert size_power(tried, 1200) == pytest.approx(mean_power(halfway, 200))
    found = recommended_size(tried)
    assert found is not None and 300 < found < 4800 and size_power(tried, found) >= 0.8
    assert all(size_power(tried, size) < 0.82 for size in range(300, found, 50))
    assert all(size_power(tried, size) > 0.78 for size in range(found, 4800, 200))


def test_only_a_size_from_which_on_the_power_suffices_is_recommended() -> None:
    tried = pilots((1200, [(0.5, 0.1)]), (2400, [(0.2, 0.15)]), (60_000, [(0.2, 0.15)]))
    found = recommended_size(tried)
    assert found is not None and found > 2400
    assert recommended_size(pilots((600, [(0.2, 0.1), (0.1, 0.2)]))) is None
    assert recommended_size(pilots((600, [(0.1001, 0.1)])), most=10_000) is None


def test_the_interval_of_folds_in_rotation_by_hand() -> None:
    """Nadeau & Bengio: the variance of the mean of J folds is (1 / J + n_test / n_train) s^2."""
    differences = np.array([0.02, 0.04, 0.0, 0.06, 0.03, 0.03])
    deviation = math.sqrt((1 / 6 + 100 / 400) * differences.var(ddof=1))
    low, high = rotation_interval(differences, 100, 400)
    assert (low + high) / 2 == pytest.approx(0.03)
    assert (high - low) / 2 == pytest.approx(stats.t.ppf(0.975, 5) * deviation)
    assert rotation_interval(np.array([0.1]), 100, 400) is None
    with pytest.raises(StatisticError):
        rotation_interval(np.array([0.1, math.nan]), 100, 400)
