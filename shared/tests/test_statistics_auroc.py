"""AUROC, the group bootstrap and grouped folds against hand counts, loops, brute force and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from statsmodels.stats.weightstats import DescrStatsW

from poolbench.errors import CellError
from poolbench.statistics.auroc import auroc, auroc_resamples
from poolbench.statistics.bootstrap import (
    bootstrap_counts,
    group_mean_resamples,
    group_weights,
    mean_interval,
    percentile_interval,
    t_interval,
)
from poolbench.statistics.folds import connected_groups, grouped_folds
from poolbench.statistics.inputs import StatisticError
from poolbench.statistics.paired import paired_differences, within_pair_accuracy


def test_auroc_by_hand():
    # pairs: (3,1) (3,2) won, (2,1) won, (2,2) tied: 3.5 of 4
    assert auroc(np.array([1, 1, 0, 0]), np.array([3.0, 2.0, 1.0, 2.0])) == 3.5 / 4
    labels = np.array([1, 0, 1, 0])
    folds = np.array([0, 0, 1, 1])
    scores = np.array([1.0, 0.0, 11.0, 10.0])
    assert auroc(labels, scores) == 0.75
    assert auroc(labels, scores, folds) == 1.0


@pytest.mark.parametrize("decimals", [1, 6])
def test_auroc_agrees_with_sklearn(decimals):
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, 200), rng.normal(size=200).round(decimals)
    assert auroc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_auroc_without_pairs_or_scores_is_nan():
    assert np.isnan(auroc(np.ones(3), np.arange(3.0)))
    labels, scores = np.array([1, 0, 1]), np.array([np.nan, 1.0, 2.0])
    assert np.isnan(auroc(labels, scores))  # sorted to the top it would give 1
    assert np.isnan(auroc_resamples(labels, scores, np.ones((3, 3)))).all()
    with pytest.raises(StatisticError, match="2 labels, 3 scores"):
        auroc(np.array([1, 0]), np.array([1.0, 2.0, 3.0]))


def test_infinite_scores_may_tie():
    labels, groups = np.array([1, 0, 1, 0]), np.array([0, 0, 1, 1])
    far, near = (auroc_resamples(labels, np.array([top, top, 1.0, 0.0]), np.full((1, 4), 2), groups=groups)
                 for top in (np.inf, 9.0))  # fmt: skip
    assert far[0] == near[0] == pytest.approx((2 * 0.5 + 2 + 0 + 4) / (2 + 2 + 4 + 4))


def test_weights_equal_repeated_rows():
    rng = np.random.default_rng(1)
    labels, scores = rng.integers(0, 2, 40), rng.normal(size=40).round(1)
    counts = bootstrap_counts(40, 20, seed=3)
    expected = [auroc(np.repeat(labels, row), np.repeat(scores, row)) for row in counts]
    np.testing.assert_allclose(auroc_resamples(labels, scores, counts), expected, atol=1e-12)


def test_group_copies_are_compared_with_themselves_only():
    # Group 0 drawn twice, group 1 once: pairs inside a copy of group 0 count 2, not 4.
    labels, groups = np.array([1, 0, 1, 0]), np.array([0, 0, 1, 1])
    scores = np.array([2.0, 3.0, 4.0, 1.0])  # in-group: 0 lost, 1 won; between: 2>1 won, 4>3 won
    weights = np.array([[2, 2, 1, 1]])
    inside_lost, inside_won, between_won = 2, 1, 2 + 2
    expected = (inside_won + between_won) / (inside_lost + inside_won + between_won)
    assert auroc_resamples(labels, scores, weights, groups=groups)[0] == pytest.approx(expected)


def test_resamples_centre_on_the_value_for_matched_pairs():
    rng = np.random.default_rng(2)
    shared = rng.normal(size=60) * 3
    scores = np.concatenate([shared + 0.5 + rng.normal(size=60) * 0.1, shared])
    labels, groups = np.repeat([1, 0], 60), np.tile(np.arange(60), 2)
    weights = group_weights(groups, 2000, seed=0)
    value = auroc(labels, scores)
    assert abs(auroc_resamples(labels, scores, weights, groups=groups).mean() - value) < 0.001
    assert auroc_resamples(labels, scores, weights).mean() - value > 0.005


def test_group_weights_move_members_together():
    weights = group_weights(np.array(["a", "b", "a", "c"]), 50, seed=0)
    assert weights.shape == (50, 4)
    np.testing.assert_array_equal(weights[:, 0], weights[:, 2])
    assert (weights[:, [0, 1, 3]].sum(axis=1) == 3).all()
    np.testing.assert_array_equal(weights, group_weights(np.array(["a", "b", "a", "c"]), 50, seed=0))


def test_an_interval_needs_groups_and_half_of_the_resamples():
    assert percentile_interval(np.array([1.0, np.nan, np.nan])) is None
    assert percentile_interval(np.array([0.0, 1.0, np.nan])) == pytest.approx((0.025, 0.975))
    assert mean_interval(np.array([1.0])) is None and mean_interval(np.array([1.0, np.nan])) is None
    low, high = mean_interval(np.arange(50.0))
    assert low < 24.5 < high


def test_pairs_by_hand():
    assert within_pair_accuracy(np.array([1.0, -1.0, 0.0, 2.0]))[0] == 2.5 / 4
    assert within_pair_accuracy(np.array([1.0, -1.0]), np.array([[3, 1]]))[0] == 0.75
    found = paired_differences(["a", "b"], np.array([1.0, 2.0]), ["b", "a"], np.array([5.0, 9.0]))
    np.testing.assert_array_equal(found, [8.0, 3.0])


def test_resamples_agree_with_repeated_rows_and_are_shared_by_cells():
    rng = np.random.default_rng(0)
    values, groups = rng.normal(size=(12, 2)), np.repeat(["a", "b", "c", "d"], [1, 2, 4, 5])
    values[3, 1] = np.nan
    found = group_mean_resamples(values, groups, num_resamples=30, seed=5)
    for row, counts in zip(found, bootstrap_counts(4, 30, seed=5), strict=True):
        repeats = np.repeat(np.arange(12), counts[np.unique(groups, return_inverse=True)[1]])
        np.testing.assert_allclose(row, np.nanmean(values[repeats], axis=0))
    values = np.random.default_rng(1).normal(size=(20, 1))
    found = group_mean_resamples(np.hstack([values, values + 1]))
    np.testing.assert_allclose(found[:, 1] - found[:, 0], 1)


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


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_pairs_without_a_finite_difference_are_refused():
    for wrong in (np.nan, np.inf):
        with pytest.raises(StatisticError) as caught:
            paired_differences(["a", "b"], np.array([1.0, wrong]), ["a", "b"], np.array([1.0, wrong]))
        assert caught.value.status == "non_finite"
    assert paired_differences([], np.array([]), [], np.array([])).size == 0


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


def test_groups_are_connected_components():
    pairs = ["p", "p", None, "q", None]
    documents = ["d1", "d2", "d2", "d3", None]
    # rows 0-1 by pair, 1-2 by document; 3 and 4 alone
    np.testing.assert_array_equal(connected_groups(pairs, documents), [0, 0, 0, 1, 2])
    np.testing.assert_array_equal(connected_groups(["x", None], [None, "x"]), [0, 1])  # equal keys of two kinds


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 14), st.integers(0, 1)), min_size=30, max_size=120), st.integers(0, 5))
def test_folds_never_split_a_group(rows, seed):
    groups = np.unique([group for group, _ in rows], return_inverse=True)[1]
    labels = np.array([label for _, label in rows])
    try:
        folds = grouped_folds(groups, labels, 3, seed)
    except CellError as error:
        assert error.status in ("too_few", "one_class")
        return
    assert all(len(set(folds[groups == group])) == 1 for group in np.unique(groups))
    for fold in range(3):
        assert set(labels[folds == fold]) == {0, 1}


def test_folds_are_balanced_and_depend_on_the_seed_only():
    groups = np.repeat(np.arange(50), 2)
    labels = np.tile([1, 0], 50)
    folds = grouped_folds(groups, labels, 5, seed=3)
    np.testing.assert_array_equal(np.bincount(folds), [20] * 5)
    assert all(labels[folds == fold].mean() == 0.5 for fold in range(5))
    labels = np.repeat([1, 0], [40, 60])
    folds = grouped_folds(np.arange(100), labels, 5, seed=0)
    np.testing.assert_array_equal(np.bincount(folds[labels == 1]), [8] * 5)
    np.testing.assert_array_equal(np.bincount(folds[labels == 0]), [12] * 5)
    groups, labels = np.arange(60), np.tile([1, 0], 30)
    np.testing.assert_array_equal(grouped_folds(groups, labels, 5, 1), grouped_folds(groups, labels, 5, 1))
    assert (grouped_folds(groups, labels, 5, 1) != grouped_folds(groups, labels, 5, 2)).any()


def test_too_few_groups_and_one_class_are_typed():
    with pytest.raises(CellError, match="4 groups") as caught:
        grouped_folds(np.repeat(np.arange(4), 10), np.tile([1, 0], 20), 5, 0)
    assert caught.value.status == "too_few"
    with pytest.raises(CellError) as caught:
        grouped_folds(np.arange(20), np.ones(20, dtype=int), 5, 0)
    assert caught.value.status == "one_class"


def test_t_interval_agrees_with_statsmodels():
    values = np.random.default_rng(3).normal(size=5)
    assert t_interval(values) == pytest.approx(DescrStatsW(values).tconfint_mean())
