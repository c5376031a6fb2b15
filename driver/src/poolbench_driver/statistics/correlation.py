"""Rank and product-moment correlation, vectorised over the leading axes."""

import numpy as np

#: Fewest points of a correlation: that of two is 1, -1 or nothing, whatever they are.
MIN_POINTS = 3


def pearson(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the Pearson correlation [...] of x and y [..., n].

    NaN if a side is constant or not finite, or n is below MIN_POINTS.
    """
    x, y = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))
    if x.shape[-1] < MIN_POINTS:
        return np.full(x.shape[:-1], np.nan)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        x_centred = x - x.mean(axis=-1, keepdims=True)
        y_centred = y - y.mean(axis=-1, keepdims=True)
        covariance = (x_centred * y_centred).sum(axis=-1)
        scale = np.sqrt((x_centred**2).sum(axis=-1) * (y_centred**2).sum(axis=-1))
        is_defined = (scale > 0) & ~_constant(x) & ~_constant(y)
        return np.where(is_defined, np.clip(covariance / scale, -1, 1), np.nan)


def _constant(values: np.ndarray) -> np.ndarray:
    """Return whether all values along the last axis are equal. Distances from a rounded mean may differ from 0."""
    return np.asarray((values == values[..., :1]).all(axis=-1))


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the Spearman correlation along the last axis, with average ranks for ties, and NaN as in `pearson`."""
    from scipy import stats

    return pearson(stats.rankdata(x, axis=-1), stats.rankdata(y, axis=-1))


def kendall(x: np.ndarray, y: np.ndarray) -> float:
    """Return Kendall's tau-b of two vectors [n]; NaN if a side is constant or holds NaN, or n is below MIN_POINTS.

    Reference: Kendall (1945), "The treatment of ties in ranking problems".
    """
    from scipy import stats

    return float(stats.kendalltau(x, y).statistic) if len(x) >= MIN_POINTS else float("nan")
