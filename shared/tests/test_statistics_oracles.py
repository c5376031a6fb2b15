"""Rank tests and corrections against scikit-posthocs, statsmodels and scipy."""

import itertools

import numpy as np
import pytest
import scikit_posthocs
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import DescrStatsW

from poolbench.statistics.bootstrap import t_interval
from poolbench.statistics.correlation import kendall, spearman
from poolbench.statistics.multiple import benjamini_hochberg, holm
from poolbench.statistics.ranks import (
    friedman_test,
    iman_davenport_test,
    nemenyi_critical_difference,
    nemenyi_test,
    tie_groups,
)


@pytest.fixture(params=[1, 8], ids=["ties", "no ties"])
def scores(request):
    return np.random.default_rng(0).normal(size=(12, 6)).round(request.param) + np.linspace(0, 1, 6)


def test_nemenyi_agrees_with_scikit_posthocs(scores):
    expected = np.asarray(scikit_posthocs.posthoc_nemenyi_friedman(scores))
    np.testing.assert_allclose(nemenyi_test(scores), expected, atol=1e-6)


def test_critical_difference_is_where_nemenyis_p_reaches_alpha(scores):
    means = stats.rankdata(scores, axis=1).mean(axis=0)
    apart = np.abs(means[:, None] - means) >= nemenyi_critical_difference(6, 12, 0.05)
    np.testing.assert_array_equal(apart, nemenyi_test(scores) <= 0.05)


def test_friedman_and_iman_davenport(scores):
    chi_square = stats.friedmanchisquare(*scores.T).statistic
    expected = 11 * chi_square / (12 * 5 - chi_square)
    found = iman_davenport_test(scores)
    assert friedman_test(scores).statistic == pytest.approx(chi_square)
    assert found.statistic == pytest.approx(expected)
    assert found.p_value == pytest.approx(stats.f.sf(expected, 5, 55))


def test_iman_davenport_of_demsars_example():
    # Demsar (2006), section 3.2.2: chi-square 9.28 for 4 classifiers on 14 data sets gives F 3.69.
    assert pytest.approx(3.69, abs=5e-3) == 13 * 9.28 / (14 * 3 - 9.28)


def test_blocks_that_all_agree():
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


def test_t_interval_agrees_with_statsmodels():
    values = np.random.default_rng(3).normal(size=5)
    assert t_interval(values) == pytest.approx(DescrStatsW(values).tconfint_mean())


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


@pytest.mark.filterwarnings("error")
@settings(deadline=None)
@given(PAIRS)
def test_kendall_by_its_definition(pairs):
    orders = [np.sign(np.greater.outer(side, side).astype(float) - np.less.outer(side, side)) for side in pairs]
    scale = np.sqrt((orders[0] ** 2).sum() * (orders[1] ** 2).sum())
    expected = (orders[0] * orders[1]).sum() / scale if scale > 0 and len(pairs[0]) >= 3 else np.nan
    np.testing.assert_allclose(kendall(*pairs), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.filterwarnings("error")
@settings(deadline=None)
@given(BLOCKS)
def test_friedman_by_its_definition(scores):
    num_blocks, num_treatments = scores.shape
    centred = stats.rankdata(scores, axis=1) - (num_treatments + 1) / 2
    within = (centred**2).sum() / (num_blocks * (num_treatments - 1))
    statistic = num_blocks * (centred.mean(axis=0) ** 2).sum() / within if within else np.nan
    expected = statistic, stats.chi2.sf(statistic, num_treatments - 1)
    np.testing.assert_allclose(friedman_test(scores), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("error")
@settings(deadline=None)
@given(st.integers(0, 12).flatmap(lambda n: arrays(float, n, elements=CHANCES)))
def test_benjamini_hochberg_by_its_definition(p_values):
    known = np.sort(p_values[np.isfinite(p_values)])
    ratios = np.minimum(known * len(known) / np.arange(1, len(known) + 1), 1)
    expected = [np.nan if np.isnan(p) else ratios[known >= p].min() for p in p_values]
    np.testing.assert_allclose(benjamini_hochberg(p_values), expected, rtol=1e-12)
