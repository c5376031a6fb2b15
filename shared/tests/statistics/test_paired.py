"""The paired permutation test against scipy and by hand."""

import numpy as np
import pytest
from scipy import stats

from poolbench.statistics.inputs import StatisticError
from poolbench.statistics.paired import paired_permutation_test


def test_a_paired_permutation_by_hand_in_any_order_and_scale():
    # signs of 1, 2, 4: only +++ and --- reach 7
    assert paired_permutation_test(np.array([1.0, 2.0, 4.0])) == (2 / 8, 7 / 3, 0)
    assert paired_permutation_test(np.array([1.0, 1.0, -2.0])).p_value == 1
    assert paired_permutation_test(np.zeros(5)).p_value == 1
    values = np.random.default_rng(5).normal(0.4, 1, size=12)
    expected = paired_permutation_test(values).p_value
    assert paired_permutation_test(values[::-1]).p_value == expected
    assert paired_permutation_test(-3 * values).p_value == expected


@pytest.mark.parametrize("seed", range(4))
def test_exact_p_agrees_with_scipy(seed):
    values = np.random.default_rng(seed).normal(0.5, 1, size=10).round(1)
    other = np.zeros(10)
    expected = stats.permutation_test(
        (values, other), lambda x, y, axis: (x - y).mean(axis=axis), permutation_type="samples",
        vectorized=True, n_resamples=np.inf,
    )  # fmt: skip
    assert paired_permutation_test(values).p_value == pytest.approx(expected.pvalue, abs=1e-12)


def test_drawn_p_approaches_the_exact_one_and_follows_the_seed():
    values = np.random.default_rng(1).normal(0.3, 1, size=18)
    exact = paired_permutation_test(values).p_value
    padded = np.concatenate([values, np.full(10, 1e-9)])  # too many units to count, the same question
    drawn = paired_permutation_test(padded, num_resamples=20_000)
    assert drawn.num_drawn == 20_000
    assert drawn.p_value == pytest.approx(exact, abs=4 * np.sqrt(exact / 20_000))
    values = np.full(60, 1.0)
    assert paired_permutation_test(values, num_resamples=99).p_value == 1 / 100
    noise = np.random.default_rng(0).normal(size=60)
    first, again, other = (paired_permutation_test(noise, num_resamples=200, seed=s).p_value for s in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ([], "too_few"),
        ([1.0, np.nan], "non_finite"),
        ([1.0, np.inf], "non_finite"),  # its p came out as 0
        ([[1.0], [2.0]], "failed"),
    ],
)
def test_bad_input_has_a_typed_reason(values, status):
    with pytest.raises(StatisticError) as caught:
        paired_permutation_test(np.array(values))
    assert caught.value.status == status
