"""Rank tests against scipy and published tables."""

import numpy as np
import pytest
from scipy import stats

from poolbench.statistics.correlation import kendall, pearson, spearman
from poolbench.statistics.multiple import benjamini_hochberg, holm
from poolbench.statistics.ranks import (
    block_ranks,
    complete_ranks,
    friedman_test,
    mean_rank_intervals,
    mean_ranks,
    nemenyi_critical_difference,
    nemenyi_quantile,
)


@pytest.fixture
def scores():
    return np.random.default_rng(0).normal(size=(12, 6)).round(1)


def test_nemenyi_quantiles_of_published_tables():
    assert nemenyi_quantile(19) == pytest.approx(3.517, abs=5e-4)
    # Demsar (2006), table 5a
    assert [round(nemenyi_quantile(k), 3) for k in (2, 5, 10)] == [1.960, 2.728, 3.164]


@pytest.mark.parametrize(("blocks", "expected"), [(17, 6.788), (33, 4.872), (51, 3.919)])
def test_critical_difference_for_19_strategies(blocks, expected):
    assert nemenyi_critical_difference(19, blocks) == pytest.approx(expected, abs=1e-3)


def test_critical_difference_refuses_one_treatment():
    with pytest.raises(ValueError, match="at least 2 treatments"):
        nemenyi_critical_difference(1, 10)


def test_friedman_agrees_with_scipy(scores):
    expected = stats.friedmanchisquare(*scores.T)
    assert friedman_test(scores) == pytest.approx((expected.statistic, expected.pvalue))


def test_friedman_of_all_ties_is_nan():
    assert np.isnan(friedman_test(np.ones((4, 3))).p_value)


def test_holm_by_hand_keeps_missing_values():
    adjusted = holm(np.array([0.01, 0.04, np.nan, 0.03]))
    np.testing.assert_allclose(adjusted, [0.03, 0.06, np.nan, 0.06])


@pytest.mark.parametrize("correction", [holm, benjamini_hochberg])
def test_corrections_refuse_what_is_no_probability(correction):
    for wrong in (-0.1, 1.5, np.inf):
        with pytest.raises(ValueError, match="between 0 and 1"):
            correction(np.array([0.2, wrong]))
    assert correction(np.array([])).size == 0


def test_benjamini_hochberg_agrees_with_scipy():
    p_values = np.random.default_rng(2).random(15) ** 2
    np.testing.assert_allclose(benjamini_hochberg(p_values), stats.false_discovery_control(p_values))


def test_spearman_agrees_with_scipy_row_by_row(scores):
    y = np.arange(6.0)
    expected = [stats.spearmanr(row, y).statistic for row in scores]
    np.testing.assert_allclose(spearman(scores, np.broadcast_to(y, scores.shape)), expected)


def test_correlation_with_a_constant_is_nan():
    assert np.isnan(spearman(np.ones(5), np.arange(5.0)))
    assert np.isnan(pearson(np.ones(5), np.arange(5.0)))
    assert np.isnan(kendall(np.ones(5), np.arange(5.0)))


def test_a_constant_whose_mean_is_rounded_is_constant():
    constant = np.full(3, 0.1)
    assert constant.mean() != 0.1
    assert np.isnan(pearson(constant, np.array([1.0, 2.0, 4.0])))
    assert np.isnan(pearson(np.stack([constant, [1.0, 2.0, 3.0]]), np.arange(3.0))).tolist() == [True, False]


@pytest.mark.filterwarnings("error")
def test_correlations_without_anything_to_correlate_are_nan():
    for function in (pearson, spearman, kendall):
        assert np.isnan(function(np.array([]), np.array([])))
        assert np.isnan(function(np.array([1.0, np.nan, 2.0]), np.arange(3.0)))
    assert np.isnan(pearson(np.array([1.0, np.inf, 2.0]), np.arange(3.0)))


@pytest.mark.filterwarnings("error")
def test_rank_correlations_take_infinite_values_as_the_largest():
    x, y = np.array([np.inf, 1.0, np.inf, -np.inf]), np.array([3.0, 2.0, 4.0, 3.5])
    finite = np.array([9.0, 1.0, 9.0, -9.0])
    assert kendall(x, y) == kendall(finite, y)
    assert spearman(x, y) == spearman(finite, y)


def test_correlations_stay_in_their_bounds():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 7))
    assert np.abs(pearson(x, 3 * x + 1)).max() <= 1
    assert np.abs(pearson(x, -0.1 * x)).max() <= 1


def test_kendall_agrees_with_scipy(scores):
    assert kendall(scores[0], scores[1]) == pytest.approx(stats.kendalltau(scores[0], scores[1]).statistic)


def test_block_ranks_share_ties_and_the_worst_rank():
    ranks = block_ranks(np.array([[0.9, 0.9, -np.inf, -np.inf, np.nan]]))
    np.testing.assert_array_equal(ranks, [[1.5, 1.5, 3.5, 3.5, np.nan]])
    np.testing.assert_array_equal(block_ranks(np.array([[3.0, 1.0]]), higher_is_better=False), [[2, 1]])


def test_mean_ranks_skip_missing_blocks():
    ranks = np.array([[1.0, 2.0], [2.0, np.nan]])
    np.testing.assert_array_equal(mean_ranks(ranks), [1.5, 2.0])


def test_complete_ranks_leave_out_who_has_none():
    ranks = np.array([[1.0, 2.0, np.nan], [1.0, np.nan, np.nan], [2.0, 1.0, np.nan]])
    complete, ranked = complete_ranks(ranks)
    np.testing.assert_array_equal(complete, [[1, 2], [2, 1]])
    assert ranked.tolist() == [True, True, False]


def test_mean_rank_interval_of_identical_blocks_is_a_point():
    assert mean_rank_intervals(np.tile([1.0, 2.0], (8, 1))) == [(1.0, 1.0), (2.0, 2.0)]
