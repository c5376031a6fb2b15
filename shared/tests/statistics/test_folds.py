"""Folds that keep groups together: connected components, balance, seeds, and what cannot be parted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolbench.errors import CellError
from poolbench.statistics.folds import connected_groups, grouped_folds


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
