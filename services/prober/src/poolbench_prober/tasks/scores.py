"""Scores of predictions under many weightings at once; the weights are bootstrap counts, or ones."""

from __future__ import annotations

import numpy as np


def accuracy(codes: np.ndarray, predicted: np.ndarray, weights_Rn: np.ndarray) -> np.ndarray:
    """Return the share of correct predictions [R]; NaN where all weights are 0."""
    weights_Rn = weights_Rn.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(weights_Rn @ (codes == predicted) / weights_Rn.sum(axis=1))


def macro_f1(codes: np.ndarray, predicted: np.ndarray, weights_Rn: np.ndarray) -> np.ndarray:
    """Return the mean F1 over the classes that occur among labels or predictions [R].

    Reference: van Rijsbergen (1979), Information retrieval; the mean as in scikit-learn's `average="macro"`.
    """
    weights_Rn = weights_Rn.astype(np.float64)
    classes = np.union1d(codes, predicted)
    true_nK, found_nK = codes[:, None] == classes, predicted[:, None] == classes
    both_RK = weights_Rn @ (true_nK & found_nK)
    either_RK = weights_Rn @ true_nK.astype(float) + weights_Rn @ found_nK.astype(float)
    present = either_RK > 0  # a resample may lack a class
    f1_RK = np.divide(2 * both_RK, either_RK, out=np.zeros_like(either_RK), where=present)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(f1_RK.sum(axis=1) / present.sum(axis=1))


def weighted_pearson(values: np.ndarray, predicted: np.ndarray, weights_Rn: np.ndarray) -> np.ndarray:
    """Return Pearson correlation [R]; NaN where a side is constant."""
    weights_Rn = weights_Rn.astype(np.float64)
    x, y = values - values.mean(), predicted - predicted.mean()
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_x, mean_y, xy, xx, yy = (
            weights_Rn @ column / weights_Rn.sum(axis=1) for column in (x, y, x * y, x * x, y * y)
        )
        spread = np.maximum(xx - mean_x**2, 0) * np.maximum(yy - mean_y**2, 0)
        return np.where(spread > 0, (xy - mean_x * mean_y) / np.sqrt(spread), np.nan)


def is_constant(predicted: np.ndarray) -> bool:
    """Return whether all predictions are one value, but for rounding."""
    return bool(np.ptp(predicted) <= 1e-9 * np.abs(predicted).max(initial=0.0))
