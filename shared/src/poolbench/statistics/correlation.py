"""Rank and product-moment correlation, vectorised over the leading axes."""

from __future__ import annotations

import numpy as np
from scipy import stats


def pearson(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Pearson correlation along the last axis; NaN where one side is constant.

    Args:
        x: Array [..., n], broadcast against ``y``.
        y: Array [..., n].
    """
    x_centred = x - x.mean(axis=-1, keepdims=True)
    y_centred = y - y.mean(axis=-1, keepdims=True)
    covariance = (x_centred * y_centred).sum(axis=-1)
    scale = np.sqrt((x_centred**2).sum(axis=-1) * (y_centred**2).sum(axis=-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(scale > 0, covariance / scale, np.nan)


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman correlation along the last axis with average ranks for ties; NaN where a side is constant."""
    return pearson(stats.rankdata(x, axis=-1), stats.rankdata(y, axis=-1))


def kendall(x: np.ndarray, y: np.ndarray) -> float:
    """Kendall's tau-b of two vectors [n]; NaN where one side is constant.

    Reference: Kendall (1945), "The treatment of ties in ranking problems".
    """
    sign_x = np.sign(x[:, None] - x[None, :])
    sign_y = np.sign(y[:, None] - y[None, :])
    scale = np.sqrt((sign_x**2).sum() * (sign_y**2).sum())
    return float((sign_x * sign_y).sum() / scale) if scale > 0 else float("nan")


def spearman_interval(
    x: np.ndarray, y: np.ndarray, *, num_resamples: int = 1000, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """Percentile interval of the Spearman correlation of ``x`` and ``y`` [n], resampling their pairs."""
    rng = np.random.default_rng(seed)
    index = rng.integers(0, len(x), size=(num_resamples, len(x)))
    samples = spearman(x[index], y[index])
    tail = 50 * (1 - level)
    low, high = np.nanpercentile(samples, [tail, 100 - tail])
    return float(low), float(high)
