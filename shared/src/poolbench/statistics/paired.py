"""Order within matched pairs."""

from __future__ import annotations

import numpy as np


def within_pair_accuracy(differences: np.ndarray, weights_RP: np.ndarray | None = None) -> np.ndarray:
    """Share of pairs whose positive scores above its negative, ties one half, [R] (R = 1 without weights).

    Args:
        differences: Score of the positive minus score of the negative, a value a pair [P].
        weights_RP: Weights of the pairs, e.g. bootstrap counts.
    """
    ordered = (np.sign(differences) + 1) / 2
    weights = np.ones((1, len(ordered))) if weights_RP is None else weights_RP
    with np.errstate(invalid="ignore", divide="ignore"):
        return (weights @ ordered) / weights.sum(axis=1)
