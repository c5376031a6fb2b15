"""Matching of classes, and the choice of pairs, by hand."""

import numpy as np
import pytest
from recipes.real_corpus.matching import balanced, log_odds, matched
from sklearn.metrics import roc_auc_score

pytestmark = pytest.mark.lane(name="recipes")


def pairs(positives: list[float], negatives: list[float], caliper: float) -> list[tuple[int, int]]:
    return list(matched(np.array(positives), np.array(negatives), caliper))


def test_each_passage_is_in_one_pair_within_the_caliper() -> None:
    assert pairs([0.0, 1.0, 5.0], [1.1, 0.2, 9.0], 0.25) == [(0, 1), (1, 0)]
    assert pairs([2.0, 1.0], [1.5], 0.5) == [(1, 0)]  # 2.0 is within reach too; 1.0 comes first
    assert pairs([], [1.0], 1.0) == []


def test_no_pairing_has_more_pairs() -> None:
    from scipy.optimize import linear_sum_assignment

    rng = np.random.default_rng(0)
    for _ in range(20):
        first, second = rng.normal(size=15), rng.normal(0.5, 1, size=12)
        near = np.abs(first[:, None] - second[None, :]) <= 0.2
        best = near[linear_sum_assignment(-near.astype(int))].sum()
        assert len(list(matched(first, second, 0.2))) == best


def test_matched_texts_differ_no_longer_in_length() -> None:
    rng = np.random.default_rng(0)
    positives = ["word " * n + "end." for n in rng.integers(20, 60, 400)]
    negatives = ["word " * n + "end." for n in rng.integers(35, 75, 400)]
    first, second = log_odds(positives, negatives)
    couples = list(matched(first, second, 0.2 * float(np.concatenate([first, second]).std())))
    lengths = [len(positives[i]) for i, _ in couples] + [len(negatives[j]) for _, j in couples]
    labels = [1] * len(couples) + [0] * len(couples)
    assert len(couples) > 200
    assert abs(roc_auc_score(labels, lengths) - 0.5) < 0.1  # the caliper leaves a difference
    before = roc_auc_score([1] * 400 + [0] * 400, [len(text) for text in (*positives, *negatives)])
    assert before < 0.3


def test_pairs_that_lose_a_comma_are_balanced_by_others() -> None:
    loses = ("However, it rained on them all day.", "Here it rained on them all day.")
    gains = ("Here it rained on them all day.", "However, it rained on them all day.")
    couples = [loses] * 40 + [gains] * 20
    rows = balanced([first for first, _ in couples], [second for _, second in couples])
    # Half of the texts have a comma, so it differs by 2 standard deviations: 2 (n - 20) / (n + 20) <= .2 gives n = 24.
    assert sum(row >= 40 for row in rows) == 20
    assert sum(row < 40 for row in rows) == 24
    assert rows == sorted(rows)


def test_there_may_be_no_pairs() -> None:
    assert balanced([], []) == []
