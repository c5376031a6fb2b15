"""Rank and permutation tests against scipy, statsmodels, scikit-posthocs, published tables and hand counts."""

import itertools

import numpy as np
import pytest
import scikit_posthocs
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from statsmodels.stats.multitest import multipletests

from poolbench.statistics.inputs import StatisticError
from poolbench_driver.statistics.correlation import kendall, kendall_resamples, pearson, spearman
from poolbench_driver.statistics.multiple import benjamini_hochberg, holm
from poolbench_driver.statistics.ranks import (
    best_first,
    block_ranks,
    complete_ranks,
    friedman_test,
    iman_davenport_test,
    mean_rank_intervals,
    mean_ranks,
    nemenyi_critical_difference,
    nemenyi_quantile,
    nemenyi_test,
    tie_groups,
)
from poolbench_driver.statistics.wilcoxon import least_p, wilcoxon_test


@pytest.fixture
def scores():
    return np.random.default_rng(0).normal(size=(12, 6)).round(1)


def test_nemenyi_quantiles_of_published_tables_and_too_few_treatments():
    assert nemenyi_quantile(19) == pytest.approx(3.517, abs=5e-4)
    # Demsar (2006), table 5a
    assert [round(nemenyi_quantile(k), 3) for k in (2, 5, 10)] == [1.960, 2.728, 3.164]
    with pytest.raises(ValueError, match="at least 2 treatments"):
        nemenyi_critical_difference(1, 10)
    assert nemenyi_critical_difference(2, 10) == pytest.approx(1.960 * np.sqrt(2 * 3 / 60), abs=1e-3)


@pytest.mark.parametrize(("blocks", "expected"), [(17, 6.788), (33, 4.872), (51, 3.919)])
def test_critical_difference_for_19_strategies(blocks, expected):
    assert nemenyi_critical_difference(19, blocks) == pytest.approx(expected, abs=1e-3)


def test_holm_by_hand_keeps_missing_values():
    adjusted = holm(np.array([0.01, 0.04, np.nan, 0.03]))
    np.testing.assert_allclose(adjusted, [0.03, 0.06, np.nan, 0.06])


@pytest.mark.parametrize("correction", [holm, benjamini_hochberg])
def test_corrections_refuse_what_is_no_probability(correction):
    for wrong in (-0.1, 1.5, np.inf):
        with pytest.raises(ValueError, match="between 0 and 1"):
            correction(np.array([0.2, wrong]))
    assert correction(np.array([])).size == 0


def test_spearman_agrees_with_scipy_row_by_row(scores):
    y = np.arange(6.0)
    expected = [stats.spearmanr(row, y).statistic for row in scores]
    np.testing.assert_allclose(spearman(scores, np.broadcast_to(y, scores.shape)), expected)


def test_correlations_of_constants_and_their_bounds():
    constant = np.full(3, 0.1)
    assert constant.mean() != 0.1
    assert np.isnan(pearson(constant, np.array([1.0, 2.0, 4.0])))
    assert np.isnan(pearson(np.stack([constant, [1.0, 2.0, 3.0]]), np.arange(3.0))).tolist() == [True, False]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 7))
    assert np.abs(pearson(x, 3 * x + 1)).max() <= 1
    assert np.abs(pearson(x, -0.1 * x)).max() <= 1


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_correlations_without_anything_to_correlate_are_nan():
    for function in (pearson, spearman, kendall):
        assert np.isnan(function(np.array([]), np.array([])))
        assert np.isnan(function(np.ones(5), np.arange(5.0)))
        assert np.isnan(function(np.array([1.0, np.nan, 2.0]), np.arange(3.0)))
    assert np.isnan(pearson(np.array([1.0, np.inf, 2.0]), np.arange(3.0)))


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_rank_correlations_take_infinite_values_as_the_largest():
    x, y = np.array([np.inf, 1.0, np.inf, -np.inf]), np.array([3.0, 2.0, 4.0, 3.5])
    finite = np.array([9.0, 1.0, 9.0, -9.0])
    assert kendall(x, y) == kendall(finite, y)
    assert spearman(x, y) == spearman(finite, y)


def test_ranks_of_blocks_by_hand():
    ranks = block_ranks(np.array([[0.9, 0.9, -np.inf, -np.inf, np.nan]]))
    np.testing.assert_array_equal(ranks, [[1.5, 1.5, 3.5, 3.5, np.nan]])
    np.testing.assert_array_equal(block_ranks(np.array([[3.0, 1.0]]), higher_is_better=False), [[2, 1]])
    ranks = np.array([[1.0, 2.0], [2.0, np.nan]])
    np.testing.assert_array_equal(mean_ranks(ranks), [1.5, 2.0])
    ranks = np.array([[1.0, 2.0, np.nan], [1.0, np.nan, np.nan], [2.0, 1.0, np.nan]])
    complete, ranked = complete_ranks(ranks)
    np.testing.assert_array_equal(complete, [[1, 2], [2, 1]])
    assert ranked.tolist() == [True, True, False]
    assert mean_rank_intervals(np.tile([1.0, 2.0], (8, 1))) == [(1.0, 1.0), (2.0, 2.0)]


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


@pytest.mark.parametrize("num_blocks", [1, 2, 5, 17])
def test_least_p_is_that_of_differences_of_one_sign(num_blocks):
    assert least_p(num_blocks) == pytest.approx(wilcoxon_test(np.arange(1.0, num_blocks + 1)).p_value, abs=1e-12)


def test_wilcoxon_by_hand():
    # |d| ranks 1 2 3, signs + + -: (1 + 2 - 3) / 6
    assert wilcoxon_test(np.array([1.0, 2.0, -3.0])).effect == 0
    assert wilcoxon_test(np.array([1.0, 2.0, 3.0])).effect == 1
    # a zero takes rank 1 with it: ranks 2 3 4, (2 + 3 - 4) / 9
    assert wilcoxon_test(np.array([1.0, 2.0, -3.0, 0.0])).effect == pytest.approx(1 / 9)
    assert wilcoxon_test(np.array([np.inf, 1.0, np.inf])) == wilcoxon_test(np.array([9.0, 1.0, 9.0]))
    assert wilcoxon_test(np.zeros(4)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("test", "values", "status"),
    [
        (wilcoxon_test, [], "too_few"),
        (wilcoxon_test, [1.0, np.nan], "non_finite"),
    ],
)
def test_bad_input_has_a_typed_reason(test, values, status):
    with pytest.raises(StatisticError) as caught:
        test(np.array(values))
    assert caught.value.status == status


@pytest.fixture(params=[1, 8], ids=["ties", "no ties"])
def random_scores(request):
    return np.random.default_rng(0).normal(size=(12, 6)).round(request.param) + np.linspace(0, 1, 6)


def test_nemenyi_agrees_with_scikit_posthocs_and_with_its_critical_difference(random_scores):
    expected = np.asarray(scikit_posthocs.posthoc_nemenyi_friedman(random_scores))
    np.testing.assert_allclose(nemenyi_test(random_scores), expected, atol=1e-6)
    means = stats.rankdata(random_scores, axis=1).mean(axis=0)
    apart = np.abs(means[:, None] - means) >= nemenyi_critical_difference(6, 12, 0.05)
    np.testing.assert_array_equal(apart, nemenyi_test(random_scores) <= 0.05)


def test_friedman_and_iman_davenport_and_blocks_that_all_agree(random_scores):
    for board in (random_scores, np.random.default_rng(1).normal(size=(17, 19))):
        chi_square = stats.friedmanchisquare(*board.T).statistic
        num_blocks, freedom = len(board), board.shape[1] - 1
        expected = (num_blocks - 1) * chi_square / (num_blocks * freedom - chi_square)
        found = iman_davenport_test(board)
        assert friedman_test(board).statistic == pytest.approx(chi_square)
        assert found.statistic == pytest.approx(expected)
        assert found.p_value == pytest.approx(stats.f.sf(expected, freedom, freedom * (num_blocks - 1)))
    assert iman_davenport_test(np.tile([3.0, 2.0, 1.0], (5, 1))) == (np.inf, pytest.approx(1 / 6**4))
    assert np.isnan(iman_davenport_test(np.ones((5, 3))).p_value)


@pytest.mark.parametrize("row", [[1.0, 2.0, 3.0], [1.0, 1.0, 2.0, 3.0], [1.0, 1.0, 2.0, 2.0]])
def test_p_of_blocks_that_all_agree_is_that_of_every_order(row):
    agreeing = np.tile(row, (3, 1))
    orders = [np.array(order) for order in itertools.permutations(row)]
    chance = [iman_davenport_test(np.stack([row, a, b])).statistic == np.inf for a in orders for b in orders]
    assert iman_davenport_test(agreeing).p_value == pytest.approx(np.mean(chance))


@pytest.mark.parametrize(("ours", "theirs"), [(holm, "holm"), (benjamini_hochberg, "fdr_bh")])
def test_corrections_agree_with_statsmodels(ours, theirs):
    p_values = np.random.default_rng(2).random(30).round(2) ** 2
    np.testing.assert_allclose(ours(p_values), multipletests(p_values, method=theirs)[1], atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_correlations_with_ties_agree_with_scipy(seed):
    x, y = np.random.default_rng(seed).integers(0, 5, size=(2, 30)).astype(float)
    assert kendall(x, y) == pytest.approx(stats.kendalltau(x, y).statistic)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)


def test_tie_groups_by_hand():
    assert tie_groups([1.0, 2.0, 4.0, 4.5], 1.5) == [(0, 1), (2, 3)]
    assert tie_groups([1.0, 2.0, 3.0], 1.5) == [(0, 1), (1, 2)]  # overlapping bars
    assert tie_groups([3.0, 1.0, 2.0], 9.0) == [(1, 2, 0)]
    assert tie_groups([1.0, np.nan, 5.0], 2.0) == [(0,), (2,)]


#: Ties, zeros, infinite scores, and numbers that differ much in size.
NUMBERS = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6), st.sampled_from([np.inf, -np.inf]))
PAIRS = st.integers(0, 12).flatmap(lambda n: arrays(float, (2, n), elements=NUMBERS))
BLOCKS = st.tuples(st.integers(2, 8), st.integers(3, 8)).flatmap(lambda shape: arrays(float, shape, elements=NUMBERS))
CHANCES = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0, np.nan]))


@pytest.mark.filterwarnings("error::RuntimeWarning")
@settings(deadline=None)
@given(PAIRS)
def test_kendall_by_its_definition(pairs):
    orders = [np.sign(np.greater.outer(side, side).astype(float) - np.less.outer(side, side)) for side in pairs]
    scale = np.sqrt((orders[0] ** 2).sum() * (orders[1] ** 2).sum())
    expected = (orders[0] * orders[1]).sum() / scale if scale > 0 and len(pairs[0]) >= 3 else np.nan
    np.testing.assert_allclose(kendall(*pairs), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@settings(deadline=None)
@given(BLOCKS)
def test_friedman_by_its_definition(random_scores):
    num_blocks, num_treatments = random_scores.shape
    centred = stats.rankdata(random_scores, axis=1) - (num_treatments + 1) / 2
    within = (centred**2).sum() / (num_blocks * (num_treatments - 1))
    statistic = num_blocks * (centred.mean(axis=0) ** 2).sum() / within if within else np.nan
    expected = statistic, stats.chi2.sf(statistic, num_treatments - 1)
    np.testing.assert_allclose(friedman_test(random_scores), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@settings(deadline=None)
@given(st.integers(0, 12).flatmap(lambda n: arrays(float, n, elements=CHANCES)))
def test_benjamini_hochberg_by_its_definition(p_values):
    known = np.sort(p_values[np.isfinite(p_values)])
    ratios = np.minimum(known * len(known) / np.arange(1, len(known) + 1), 1)
    expected = [np.nan if np.isnan(p) else ratios[known >= p].min() for p in p_values]
    np.testing.assert_allclose(benjamini_hochberg(p_values), expected, rtol=1e-12)


def test_fewer_blocks_do_not_lead_and_no_mean_is_last() -> None:
    means, counts = np.array([1.0, 2.0, np.nan, 1.5, 2.0]), np.array([2, 3, 3, 3, 3])
    assert best_first(means, counts) == [3, 1, 4, 0, 2]
    assert best_first(np.empty(0), np.empty(0)) == []


@pytest.mark.parametrize("test", [friedman_test, nemenyi_test])
def test_rank_tests_say_what_is_missing(test):
    for scores, status in (
        (np.ones((1, 4)), "too_few"),
        (np.full((5, 4), np.nan), "non_finite"),
        (np.ones(3), "failed"),
    ):
        with pytest.raises(StatisticError) as caught:
            test(scores)
        assert caught.value.status == status


def test_kendall_of_many_rows_is_that_of_scipy() -> None:
    """With ties, a constant row, a row with NaN, and too few columns."""
    rng = np.random.default_rng(3)
    x, y = rng.integers(0, 4, (2, 50, 9)).astype(float)
    x[0], y[1, 2] = 1.0, np.nan
    found = kendall_resamples(x, y)
    assert found[2:] == pytest.approx([stats.kendalltau(*rows).statistic for rows in zip(x[2:], y[2:], strict=True)])
    assert np.isnan(found[:2]).all() and np.isnan(kendall_resamples(x[:, :2], y[:, :2])).all()
