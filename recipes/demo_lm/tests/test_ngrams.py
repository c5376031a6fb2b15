"""The n-gram baselines: hand computations, normalisation, and a plain implementation beside it."""

from collections import Counter

import numpy as np
import pytest
from recipes.demo_lm import ngrams

VOCABULARY = 7
TEXT = np.random.default_rng(0).choice(VOCABULARY, 400, p=[0.3, 0.25, 0.2, 0.1, 0.08, 0.05, 0.02])


def plain(tokens: np.ndarray, order: int, context: tuple[int, ...], token: int) -> float:
    """Modified Kneser-Ney by the recursion of the paper, with dictionaries."""
    tables = [Counter(tuple(tokens[i : i + order]) for i in range(len(tokens) - order + 1))]
    for _ in range(order - 1):
        tables.insert(0, Counter(gram[1:] for gram in tables[0]))

    def probability(level: int, history: tuple[int, ...]) -> float:
        if level == 0:
            return 1 / VOCABULARY
        table = tables[level - 1]
        history = history[len(history) - (level - 1) :]
        lower = probability(level - 1, history)
        follow = {gram[-1]: count for gram, count in table.items() if gram[:-1] == history}
        if not follow:
            return lower
        cut = ngrams.discounts(np.array(list(table.values())))
        total = sum(follow.values())
        mass = sum(cut[min(count, 3) - 1] for count in follow.values()) / total
        count = follow.get(token, 0)
        return (count - cut[min(count, 3) - 1] if count else 0.0) / total + mass * lower

    return probability(order, context)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_agrees_with_a_plain_implementation(order: int) -> None:
    probabilities = ngrams.KneserNey(TEXT, order, VOCABULARY).probabilities(TEXT[:60])
    for index, value in enumerate(probabilities):
        at = index + order - 1
        context = tuple(TEXT[index:at])
        assert value == pytest.approx(plain(TEXT, order, context, int(TEXT[at])), rel=1e-12)


@pytest.mark.parametrize("context", [(0, 1), (6, 6), (5, 6)])
def test_probabilities_of_a_context_sum_to_one(context: tuple[int, int]) -> None:
    model = ngrams.KneserNey(TEXT, 3, VOCABULARY)
    total = sum(model.probabilities(np.array([*context, token]))[0] for token in range(VOCABULARY))
    assert total == pytest.approx(1.0, abs=1e-12)


def test_keys_by_hand() -> None:
    assert ngrams.keys_of(np.array([1, 2, 3]), 2, 10).tolist() == [12, 23]


def test_loss_scores_marked_positions_only() -> None:
    model = ngrams.KneserNey(TEXT, 2, VOCABULARY)
    scored = np.zeros(50, dtype=bool)
    scored[[10, 20]] = True
    values = model.probabilities(TEXT[:50])[[9, 19]]
    assert ngrams.loss(model, TEXT[:50], scored) == pytest.approx(-np.log(values).mean())


def test_longer_contexts_predict_text_with_structure_better() -> None:
    text = np.tile([0, 1, 2, 0, 2, 1, 3], 60)
    scored = np.ones(100, dtype=bool)
    losses = [ngrams.loss(ngrams.KneserNey(text, order, VOCABULARY), text[:100], scored) for order in (1, 2, 3)]
    assert losses[0] > losses[1] > losses[2]
