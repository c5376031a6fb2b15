"""Rank and product-moment correlation, vectorised over the leading axes."""

import numpy as np

#: Fewest points of a correlation: that of two is 1, -1 or nothing, whatever they are.
MIN_POINTS = 3
#: Signs of pairs that are held at once.
_MOST_SIGNS = 2_000_000


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


def intraclass(values_NK: np.ndarray) -> float:
    """Return the intraclass correlation of K raters of N targets: two-way random effects, absolute agreement, single.

    1 if all raters give each target the same value. It can be negative. NaN with fewer than two targets or raters, or
    if all values are equal.

    Reference: Shrout and Fleiss (1979), "Intraclass correlations", ICC(2,1).
    """
    num_targets, num_raters = values_NK.shape
    if min(num_targets, num_raters) < 2:
        return float("nan")
    by_target, by_rater = values_NK.mean(axis=1), values_NK.mean(axis=0)
    residuals_NK = values_NK - by_target[:, None] - by_rater + values_NK.mean()
    of_targets = num_raters * by_target.var(ddof=1)
    of_raters = num_targets * by_rater.var(ddof=1)
    of_rest = (residuals_NK**2).sum() / ((num_targets - 1) * (num_raters - 1))
    scale = of_targets + (num_raters - 1) * of_rest + num_raters * (of_raters - of_rest) / num_targets
    return float("nan") if np.ptp(values_NK) == 0 else float((of_targets - of_rest) / scale)


def kendall(x: np.ndarray, y: np.ndarray) -> float:
    """Return Kendall's tau-b of two vectors [n]; NaN if a side is constant or holds NaN, or n is below MIN_POINTS.

    Reference: Kendall (1945), "The treatment of ties in ranking problems".
    """
    from scipy import stats

    return float(stats.kendalltau(x, y).statistic) if len(x) >= MIN_POINTS else float("nan")


def kendall_resamples(x_RM: np.ndarray, y_RM: np.ndarray) -> np.ndarray:
    """Return Kendall's tau-b [R] of each row of x with that row of y, and NaN as in `kendall`.

    Many rows are computed at once, which takes a hundredth of the time of `kendall` for each row.
    """
    first, second = np.triu_indices(x_RM.shape[1], 1)
    if x_RM.shape[1] < MIN_POINTS:
        return np.full(len(x_RM), np.nan)
    taus = []
    for rows in np.array_split(np.arange(len(x_RM)), 1 + len(x_RM) * len(first) // _MOST_SIGNS):
        x_signs, y_signs = (np.sign(side[rows][:, first] - side[rows][:, second]) for side in (x_RM, y_RM))
        with np.errstate(invalid="ignore", divide="ignore"):
            taus.append((x_signs * y_signs).sum(axis=1) / np.sqrt((x_signs**2).sum(axis=1) * (y_signs**2).sum(axis=1)))
    return np.concatenate(taus)
