"""Winning rate, discriminability and rank resolution by hand and by brute force."""

import numpy as np
import pytest
from scipy import stats

from poolbench.statistics import StatisticError, rank_resolution
from poolbench.statistics.winning_rate import discriminability, mean_winning_rate


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


def test_winning_rate_by_hand():
    # dataset 0: A > B = C; dataset 1: B > C, A missing
    scores = np.array([[3.0, np.nan], [1.0, 2.0], [1.0, 1.0]])
    np.testing.assert_allclose(mean_winning_rate(scores), [2 / 2, 1.5 / 3, 0.5 / 3])


def test_winning_rate_agrees_with_brute_force():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(7, 20)).round(1)
    scores[rng.random(scores.shape) < 0.2] = np.nan
    np.testing.assert_allclose(mean_winning_rate(scores), brute_force(scores))
    complete = rng.normal(size=(7, 20))
    assert mean_winning_rate(complete).mean() == pytest.approx(0.5)
    np.testing.assert_allclose(mean_winning_rate(np.exp(3 * complete)), mean_winning_rate(complete))


def test_winning_rate_without_opponents_is_nan():
    np.testing.assert_array_equal(mean_winning_rate(np.array([[1.0, np.nan], [np.nan, 2.0]])), [np.nan, np.nan])
    np.testing.assert_array_equal(mean_winning_rate(np.ones((3, 2))), [0.5, 0.5, 0.5])
    with pytest.raises(StatisticError, match="models by datasets"):
        mean_winning_rate(np.ones(3))


def test_discriminability_agrees_with_scipy():
    scores = np.random.default_rng(1).normal(size=(8, 5)) + np.arange(8)[:, None] / 3
    overall = mean_winning_rate(scores)
    expected = [stats.kendalltau(column, overall).statistic for column in scores.T]
    np.testing.assert_allclose(discriminability(scores), expected)


def test_discriminability_of_a_dataset_without_information():
    scores = np.array([[1.0, 5.0, np.nan], [2.0, 5.0, np.nan], [3.0, 5.0, 1.0]])
    np.testing.assert_array_equal(discriminability(scores), [1.0, np.nan, np.nan])


def test_rank_resolution_of_datasets_that_agree_is_zero():
    scores = np.tile(np.arange(5.0)[:, None], (1, 12))
    assert rank_resolution(scores) == (0.0, pytest.approx(1.0), 0.0)


def test_rank_resolution_agrees_with_a_loop():
    scores = np.random.default_rng(2).normal(size=(6, 15))
    full = stats.rankdata(-mean_winning_rate(scores))
    rng = np.random.default_rng(7)
    draws = rng.integers(0, 15, size=(200, 15))
    changes = [stats.rankdata(-mean_winning_rate(scores[:, draw])) - full for draw in draws]
    found = rank_resolution(scores, num_resamples=200, seed=7)
    assert found.resolution == pytest.approx(np.percentile(np.abs(changes), 95))
    assert found.published == pytest.approx(1.96 * np.std(changes, ddof=1) / np.sqrt(6))


@pytest.mark.filterwarnings("error")
def test_rank_resolution_of_nothing_measured():
    for scores in (np.full((3, 4), np.nan), np.where(np.eye(4, dtype=bool), 1.0, np.nan)):  # no two models meet
        with pytest.raises(StatisticError, match="common dataset") as caught:
            rank_resolution(scores)
        assert caught.value.status == "too_few"
    same = rank_resolution(np.ones((3, 4)))
    assert (same.resolution, same.published, np.isnan(same.tau)) == (0, 0, True)


@pytest.mark.filterwarnings("error")
def test_discriminability_takes_the_worst_score_for_what_it_is():
    scores = np.array([[1.0, -np.inf], [2.0, -np.inf], [3.0, 1.0]])
    finite = np.where(np.isinf(scores), -9.0, scores)
    np.testing.assert_array_equal(discriminability(scores), discriminability(finite))


@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (3,)])
def test_rank_resolution_of_too_little(shape):
    with pytest.raises(StatisticError, match="at least 2 models"):
        rank_resolution(np.ones(shape))
