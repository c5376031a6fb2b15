"""The signed-rank test against scipy's exact permutations, its approximation, and hand counts."""

import itertools

import numpy as np
import pytest
from scipy import stats

from poolbench.statistics.inputs import StatisticError
from poolbench.statistics.wilcoxon import wilcoxon_test


def differences(seed, n, decimals, shift=0.4):
    return (np.random.default_rng(seed).normal(size=n) + shift).round(decimals)


def enumerated(values):
    """Two-sided p by trying every pattern of signs."""
    ranks = stats.rankdata(np.abs(values))[values != 0]
    signs = np.array(list(itertools.product([-1, 1], repeat=len(ranks))))
    observed = abs((ranks * np.sign(values[values != 0])).sum())
    return (np.abs(signs @ ranks) >= observed - 1e-9).mean()


@pytest.mark.parametrize("seed", range(6))
def test_small_samples_with_ties_and_zeros_are_exact(seed):
    values = differences(seed, 11, 0)
    assert (values == 0).any()
    assert wilcoxon_test(values).p_value == pytest.approx(enumerated(values), abs=1e-12)


@pytest.mark.parametrize("n", [5, 17, 50])
def test_without_ties_it_is_scipys_exact_test(n):
    values = differences(n, n, 12)
    assert wilcoxon_test(values).p_value == pytest.approx(stats.wilcoxon(values, method="exact").pvalue, rel=1e-9)


def test_large_samples_agree_with_scipys_approximation():
    values = differences(3, 120, 1, shift=0.1)
    expected = stats.wilcoxon(values, zero_method="pratt", method="approx", correction=False)
    assert (values == 0).any()
    assert wilcoxon_test(values).p_value == pytest.approx(expected.pvalue, rel=1e-9)


def test_exact_and_approximate_p_meet_where_the_rule_changes():
    values = differences(9, 50, 12, shift=0.3)
    approximate = stats.wilcoxon(values, method="approx").pvalue
    assert wilcoxon_test(values).p_value == pytest.approx(approximate, rel=0.1)


def test_effect_by_hand():
    # |d| ranks 1 2 3, signs + + -: (1 + 2 - 3) / 6
    assert wilcoxon_test(np.array([1.0, 2.0, -3.0])).effect == 0
    assert wilcoxon_test(np.array([1.0, 2.0, 3.0])).effect == 1
    # a zero takes rank 1 with it: ranks 2 3 4, (2 + 3 - 4) / 9
    assert wilcoxon_test(np.array([1.0, 2.0, -3.0, 0.0])).effect == pytest.approx(1 / 9)


def test_scipy_agrees_on_the_rank_biserial_effect():
    values = differences(4, 15, 12)
    ranks = stats.rankdata(np.abs(values))
    positive, negative = ranks[values > 0].sum(), ranks[values < 0].sum()
    assert wilcoxon_test(values).effect == pytest.approx((positive - negative) / ranks.sum())


def test_infinite_differences_are_the_largest():
    assert wilcoxon_test(np.array([np.inf, 1.0, np.inf])) == wilcoxon_test(np.array([9.0, 1.0, 9.0]))


def test_zeros_alone_show_nothing():
    assert wilcoxon_test(np.zeros(4)) == (1.0, 0.0)


@pytest.mark.parametrize(("values", "status"), [([], "too_few"), ([1.0, np.nan], "non_finite")])
def test_bad_input_has_a_typed_reason(values, status):
    with pytest.raises(StatisticError) as caught:
        wilcoxon_test(np.array(values))
    assert caught.value.status == status


@pytest.mark.parametrize("n", [9, 17, 60])
def test_p_values_keep_their_level_with_ties_and_zeros(n):
    rng, runs = np.random.default_rng(6), 1000
    null = rng.normal(size=(runs, n)).round(0)
    found = np.array([wilcoxon_test(row).p_value for row in null])
    for level in (0.01, 0.05, 0.2):
        assert (found <= level).mean() <= level + 3 * np.sqrt(level * (1 - level) / runs)
    assert (found <= 0.2).mean() > 0.1  # and is not merely cautious
