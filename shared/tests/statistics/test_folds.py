"""Splits of groups by hand."""

import numpy as np
import pytest

from poolbench.statistics.folds import drawn_splits


@pytest.mark.parametrize("seed", range(20))
def test_a_group_belongs_to_the_split_that_contains_its_middle(seed: int) -> None:
    """70 % of the rows are train, the next 10 % dev, the others test; one group has 40 of the 100 rows."""
    sizes = [40, *[1] * 30, *[6] * 5]
    found = drawn_splits(np.repeat(np.arange(len(sizes)), sizes), seed)
    start, expected = 0.0, {}
    for group in np.random.default_rng(seed).permutation(len(sizes)):
        middle = start + sizes[group] / 2
        expected[group] = "train" if middle < 70 else "dev" if middle < 80 else "test"
        start += sizes[group]
    assert found.tolist() == [expected[group] for group, size in enumerate(sizes) for _ in range(size)]
