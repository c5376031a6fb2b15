"""Readouts on small arrays: what they learn from training rows. The prober tests them within folds."""

import numpy as np
import pytest

from poolbench.errors import CellError
from poolbench.readouts import READOUTS, FittedReadout, Training

RNG = np.random.default_rng(0)
LABELS = np.arange(40) % 2
FOLDS = np.arange(40) // 2 % 4


def fitted(name: str, parts_nPD: np.ndarray) -> FittedReadout:
    """Fit a readout with the first coordinate as the score of every vector."""
    training = Training(parts_nPD, LABELS[:, None], FOLDS, lambda vectors_nD: vectors_nD[:, :1])
    (found,) = READOUTS.get(name).fit(training)
    assert not isinstance(found, CellError), found
    return found


def test_the_heads_that_separate_the_classes_are_averaged() -> None:
    parts = RNG.normal(size=(40, 4, 3))
    parts[:, 2, 0] += 9 * LABELS
    found = fitted("best_heads", parts)
    assert 2 in found.details["heads"] and np.argmax(found.details["auroc"]) == 2
    np.testing.assert_allclose(found.apply(parts), parts[:, found.details["heads"]].mean(axis=1))


@pytest.mark.parametrize("name", ["learned_query", "mean_score", "max_score"])
def test_the_token_that_carries_the_concept_is_found(name: str) -> None:
    """Passages of five tokens, one of which carries the class in its first coordinate."""
    states = [RNG.normal(size=(5, 3)).astype(np.float32) for _ in LABELS]
    for label, h_TD in zip(LABELS, states, strict=True):
        h_TD[RNG.integers(5), 0] += 8 * label
    parts = np.empty((40, 1, 1), dtype=object)
    parts[:, 0, 0] = states
    vectors = fitted(name, parts).apply(parts)
    assert vectors.shape == (40, 3)
    carried = vectors[:, 0]
    assert np.median(carried[LABELS == 1]) > carried[LABELS == 0].max()
