"""Ranks of treatments within blocks, and mean ranks with a cluster-bootstrap interval."""

import numpy as np

from poolbench.statistics.resampling import NUM_RESAMPLES, bootstrap_counts, percentile_interval


def block_ranks(scores_NK: np.ndarray, *, higher_is_better: bool = True) -> np.ndarray:
    """Return the ranks of K treatments in each of N blocks, 1 is best, ties share their mean rank; NaN stays NaN.

    A value of -inf (+inf if lower is better) takes the worst rank, shared by all that have it.
    """
    from scipy import stats

    signed = -scores_NK if higher_is_better else scores_NK
    return stats.rankdata(signed, axis=1, nan_policy="omit")


def mean_ranks(ranks_NK: np.ndarray, weights_RN: np.ndarray | None = None) -> np.ndarray:
    """Return the mean rank of each treatment over the blocks that rank it, [K] or [R, K] with block weights."""
    present = np.isfinite(ranks_NK)
    weights = np.ones((1, len(ranks_NK))) if weights_RN is None else weights_RN
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (weights @ np.where(present, ranks_NK, 0.0)) / (weights @ present.astype(float))
    return means[0] if weights_RN is None else means


def complete_ranks(ranks_NK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ranks of the blocks in which no treatment is missing, and which treatments these are, bool [K].

    A treatment without a rank in any block is left out: otherwise no block would be complete.
    """
    ranked_K = np.isfinite(ranks_NK).any(axis=0)
    ranks = ranks_NK[:, ranked_K]
    return ranks[np.isfinite(ranks).all(axis=1)], ranked_K


def mean_rank_intervals(
    ranks_NK: np.ndarray, *, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> list[tuple[float, float] | None]:
    """Return the percentile interval of each mean rank under a bootstrap over blocks; None below two blocks."""
    samples = mean_ranks(ranks_NK, bootstrap_counts(len(ranks_NK), num_resamples, seed).astype(float))
    enough = np.isfinite(ranks_NK).sum(axis=0) >= 2
    return [percentile_interval(s) if has_interval else None for s, has_interval in zip(samples.T, enough, strict=True)]
