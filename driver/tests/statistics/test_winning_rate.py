"""Winning rate, discriminability and rank resolution by hand and by brute force."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from poolbench.statistics.bootstrap import bootstrap_counts
from poolbench.statistics.inputs import StatisticError
from poolbench_driver.statistics.winning_rate import (
    discriminability,
    mean_winning_rate,
    published_winning_rate,
    rank_resolution,
    scaled_ranks,
    winning_rate_resamples,
)


def brute_force(scores):
    """Share of (dataset, other model) pairs won, one pair at a time."""
    rates = []
    for model in range(len(scores)):
        won, met = 0.0, 0
        for other in set(range(len(scores))) - {model}:
            for a, b in zip(scores[model], scores[other], strict=True):
                if not (np.isnan(a) or np.isnan(b)):
                    won += (a > b) + 0.5 * (a == b)
                    met += 1
        rates.append(won / met if met else np.nan)
    return rates


def test_winning_rate_by_hand_and_without_opponents():
    # dataset 0: A > B = C; dataset 1: B > C, A missing
    scores = np.array([[3.0, np.nan], [1.0, 2.0], [1.0, 1.0]])
    np.testing.assert_allclose(mean_winning_rate(scores), [2 / 2, 1.5 / 3, 0.5 / 3])
    np.testing.assert_array_equal(mean_winning_rate(np.array([[1.0, np.nan], [np.nan, 2.0]])), [np.nan, np.nan])
    np.testing.assert_array_equal(mean_winning_rate(np.ones((3, 2))), [0.5, 0.5, 0.5])
    with pytest.raises(StatisticError, match="models by datasets"):
        mean_winning_rate(np.ones(3))


def test_winning_rate_agrees_with_brute_force():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(7, 20)).round(1)
    scores[rng.random(scores.shape) < 0.2] = np.nan
    np.testing.assert_allclose(mean_winning_rate(scores), brute_force(scores))
    complete = rng.normal(size=(7, 20))
    assert mean_winning_rate(complete).mean() == pytest.approx(0.5)
    np.testing.assert_allclose(mean_winning_rate(np.exp(3 * complete)), mean_winning_rate(complete))


#: Models A, B, C on three datasets, in the rows of the published table.
TABLE = np.array([[0.9, 0.8, 0.8], [0.5, 0.6, np.nan], [0.7, 0.7, 0.4]])


def test_published_winning_rates_and_their_ranks_by_hand():
    np.testing.assert_allclose(mean_winning_rate(TABLE.T), [3.5 / 5, 3 / 5, 0.5 / 4])
    np.testing.assert_allclose(published_winning_rate(TABLE.T), [2 / 3, 2 / 3, 0])
    np.testing.assert_allclose(published_winning_rate(TABLE.T, "column"), [2 / 3, 1 / 3, 1 / 2])
    # Ranks of A are 3 1 3, of B 2 2 3, of C 2, none and 1; scaled on the first and last dataset 1 1, 0 1 and 1 0.
    part = scaled_ranks(TABLE.T, "column")[:, [0, 2]]
    np.testing.assert_allclose(part.mean(axis=1), [1, 0.5, 0.5])
    np.testing.assert_allclose(published_winning_rate(TABLE.T[:, [0, 2]], "column"), [np.nan, 0.5, 0.5])


@pytest.mark.parametrize("scale", ["row", "column"])
def test_published_winning_rates_agree_with_data_frames(scale):
    """The public site ranks the rows of a pandas table; NaN of its divisions by zero is left out of its means."""
    rng = np.random.default_rng(2)
    table = pd.DataFrame(rng.normal(size=(30, 6)).round(1))
    table[rng.random(table.shape) < 0.2] = np.nan
    table.loc[3] = 0.5  # all models tie
    table.loc[4] = np.nan
    ranks = table.rank(axis=1, method="max")
    scaled = ranks.apply(lambda line: (line - line.min()) / (line.max() - line.min()), axis=1 if scale == "row" else 0)
    found = published_winning_rate(table.to_numpy().T, scale)
    np.testing.assert_allclose(found, scaled.mean())
    order = rng.permutation(30)
    np.testing.assert_allclose(published_winning_rate(table.to_numpy()[order].T, scale), found)


def test_published_winning_rates_of_ranks_without_a_spread_are_nan():
    scores = np.array([[1.0, 1.0], [1.0, 1.0]])
    np.testing.assert_array_equal(published_winning_rate(scores), [np.nan, np.nan])
    steady = np.array([[2.0, 3.0, 1.0], [1.0, 2.0, 5.0], [0.0, 1.0, 0.5]])
    assert np.isnan(published_winning_rate(steady[:, :2], "column")).all()
    with pytest.raises(StatisticError, match="models by datasets"):
        published_winning_rate(np.ones(3))


def test_discriminability_agrees_with_scipy_and_is_nan_without_information():
    scores = np.random.default_rng(1).normal(size=(8, 5)) + np.arange(8)[:, None] / 3
    overall = mean_winning_rate(scores)
    expected = [stats.kendalltau(column, overall).statistic for column in scores.T]
    np.testing.assert_allclose(discriminability(scores), expected)
    scores = np.array([[1.0, 5.0, np.nan], [2.0, 5.0, np.nan], [3.0, 5.0, 1.0]])
    np.testing.assert_array_equal(discriminability(scores), [1.0, np.nan, np.nan])


def test_rank_resolution_agrees_with_a_loop_and_is_zero_for_datasets_that_agree():
    scores = np.random.default_rng(2).normal(size=(6, 15))
    full = stats.rankdata(-mean_winning_rate(scores))
    rng = np.random.default_rng(7)
    draws = rng.integers(0, 15, size=(200, 15))
    changes = [stats.rankdata(-mean_winning_rate(scores[:, draw])) - full for draw in draws]
    found = rank_resolution(scores, num_resamples=200, seed=7)
    assert found == pytest.approx(np.percentile(np.abs(changes), 95))
    scores = np.tile(np.arange(5.0)[:, None], (1, 12))
    assert rank_resolution(scores) == 0.0


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_rank_resolution_of_nothing_measured():
    for scores in (np.full((3, 4), np.nan), np.where(np.eye(4, dtype=bool), 1.0, np.nan)):  # no two models meet
        with pytest.raises(StatisticError, match="common dataset") as caught:
            rank_resolution(scores)
        assert caught.value.status == "too_few"
    assert rank_resolution(np.ones((3, 4))) == 0


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_discriminability_takes_the_worst_score_for_what_it_is():
    scores = np.array([[1.0, -np.inf], [2.0, -np.inf], [3.0, 1.0]])
    finite = np.where(np.isinf(scores), -9.0, scores)
    np.testing.assert_array_equal(discriminability(scores), discriminability(finite))


@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (3,)])
def test_rank_resolution_of_too_little(shape):
    with pytest.raises(StatisticError, match="at least 2 models"):
        rank_resolution(np.ones(shape))


@pytest.mark.parametrize("scale", [None, "row", "column"])
def test_resampled_winning_rates_are_those_of_the_repeated_datasets(scale):
    rng = np.random.default_rng(5)
    scores = rng.integers(0, 6, size=(7, 12)).astype(float)
    scores[rng.random(scores.shape) < 0.2] = np.nan
    counts = bootstrap_counts(12, 20, 0)

    def rates(drawn):
        return mean_winning_rate(drawn) if scale is None else published_winning_rate(drawn, scale)

    found = winning_rate_resamples(scores, np.concatenate([np.ones((1, 12)), counts]), scale)
    np.testing.assert_allclose(found[0], rates(scores))
    for row, count in zip(found[1:], counts, strict=True):
        np.testing.assert_allclose(row, rates(np.repeat(scores, count, axis=1)))
