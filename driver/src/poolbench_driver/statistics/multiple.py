"""Corrections of p-values for multiple testing."""

from collections.abc import Callable

import numpy as np


def holm(p_values: np.ndarray) -> np.ndarray:
    """Return Holm's step-down adjusted p-values [n], which bound the familywise error; NaN stays NaN.

    Raise ValueError for a value that is not a probability.

    Reference: Holm (1979), "A simple sequentially rejective multiple test procedure".
    """
    return _adjusted(p_values, lambda ordered: np.maximum.accumulate(ordered * np.arange(len(ordered), 0, -1)))


def benjamini_hochberg(p_values: np.ndarray) -> np.ndarray:
    """Return Benjamini-Hochberg adjusted p-values [n], which bound the false discovery rate; NaN stays NaN.

    Raise ValueError for a value that is not a probability.

    Reference: Benjamini & Hochberg (1995), "Controlling the false discovery rate".
    """
    from scipy import stats

    return _adjusted(p_values, stats.false_discovery_control)


def _adjusted(p_values: np.ndarray, step: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    values = np.asarray(p_values, dtype=np.float64)
    if (values < 0).any() or (values > 1).any():
        raise ValueError(f"p-values lie between 0 and 1, got {values[(values < 0) | (values > 1)][:3].tolist()}")
    adjusted = np.full(values.shape, np.nan)
    finite_indices = np.flatnonzero(np.isfinite(values))
    order = finite_indices[np.argsort(values[finite_indices], kind="stable")]
    adjusted[order] = np.minimum(step(values[order]), 1.0)
    return adjusted
