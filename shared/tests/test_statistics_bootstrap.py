"""The group bootstrap of means: against a loop, its coverage, and bad input."""

import numpy as np
import pytest

from poolbench.statistics.bootstrap import bootstrap_counts, group_mean_resamples, group_weights, mean_interval
from poolbench.statistics.inputs import StatisticError
from poolbench.statistics.paired import paired_differences
from poolbench.statistics.ranks import friedman_test, mean_rank_intervals, nemenyi_test


def test_resamples_agree_with_repeated_rows():
    rng = np.random.default_rng(0)
    values, groups = rng.normal(size=(12, 2)), np.repeat(["a", "b", "c", "d"], [1, 2, 4, 5])
    values[3, 1] = np.nan
    found = group_mean_resamples(values, groups, num_resamples=30, seed=5)
    for row, counts in zip(found, bootstrap_counts(4, 30, seed=5), strict=True):
        repeats = np.repeat(np.arange(12), counts[np.unique(groups, return_inverse=True)[1]])
        np.testing.assert_allclose(row, np.nanmean(values[repeats], axis=0))


def test_cells_share_their_resamples():
    values = np.random.default_rng(1).normal(size=(20, 1))
    found = group_mean_resamples(np.hstack([values, values + 1]))
    np.testing.assert_allclose(found[:, 1] - found[:, 0], 1)


def test_interval_of_one_group_is_none():
    assert mean_interval(np.array([1.0])) is None
    low, high = mean_interval(np.arange(50.0))
    assert low < 24.5 < high


@pytest.mark.parametrize("draw", ["normal", "exponential"])
def test_coverage_at_200_groups_lies_between_93_and_97_percent(draw):
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 6, size=200)
    shared = getattr(rng, draw)(size=(200, 3000)) - (draw == "exponential")  # mean 0
    values = np.repeat(shared, sizes, axis=0) + 0.5 * rng.normal(size=(sizes.sum(), 3000))
    samples = group_mean_resamples(values, np.repeat(np.arange(200), sizes), num_resamples=500)
    low, high = np.percentile(samples, [2.5, 97.5], axis=0)
    assert 0.93 <= ((low <= 0) & (high >= 0)).mean() <= 0.97


def test_coverage_of_mean_ranks_at_200_blocks():
    rng = np.random.default_rng(4)
    goodness = np.linspace(0, 1, 5)
    truth = np.argsort(np.argsort(-(rng.normal(size=(400_000, 5)) + goodness), axis=1), axis=1).mean(axis=0) + 1
    hits = []
    for _ in range(400):
        ranks = np.argsort(np.argsort(-(rng.normal(size=(200, 5)) + goodness), axis=1), axis=1) + 1.0
        hits += [
            low <= t <= high
            for (low, high), t in zip(mean_rank_intervals(ranks, num_resamples=400), truth, strict=True)
        ]
    assert 0.93 <= np.mean(hits) <= 0.97


def test_paired_differences_align_by_id():
    found = paired_differences(["a", "b"], np.array([1.0, 2.0]), ["b", "a"], np.array([5.0, 9.0]))
    np.testing.assert_array_equal(found, [8.0, 3.0])


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (["a", "a"], ["a", "b"], "duplicated ids a"),
        (["a", "b"], ["a", "c"], "2 unpaired ids"),
        (["a"], ["a", "b"], "unpaired"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(first, second, message):
    with pytest.raises(StatisticError, match=message):
        paired_differences(first, np.ones(len(first)), second, np.ones(len(second)))


@pytest.mark.filterwarnings("error")
def test_pairs_without_a_finite_difference_are_refused():
    for wrong in (np.nan, np.inf):
        with pytest.raises(StatisticError) as caught:
            paired_differences(["a", "b"], np.array([1.0, wrong]), ["a", "b"], np.array([1.0, wrong]))
        assert caught.value.status == "non_finite"
    assert paired_differences([], np.array([]), [], np.array([])).size == 0


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


def test_an_interval_needs_two_groups_with_a_value():
    assert mean_interval(np.array([1.0, np.nan])) is None


@pytest.mark.parametrize(
    ("values", "groups", "status"),
    [([[1.0], [np.inf]], None, "non_finite"), ([[1.0], [2.0]], [0], "failed"), ([1.0], None, "too_few")],
)
def test_means_that_cannot_be_resampled(values, groups, status):
    with pytest.raises(StatisticError) as caught:
        group_mean_resamples(np.array(values), groups)
    assert caught.value.status == status


def test_nothing_to_resample():
    with pytest.raises(StatisticError, match="units by cells"):
        group_mean_resamples(np.empty((0, 2)))
    for resample in (lambda: bootstrap_counts(0, 5, seed=0), lambda: group_weights(np.array([]), 5, seed=0)):
        with pytest.raises(StatisticError, match="no unit") as caught:
            resample()
        assert caught.value.status == "too_few"
