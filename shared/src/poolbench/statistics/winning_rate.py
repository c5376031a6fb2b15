"""Mean winning rate of models over datasets."""

import numpy as np

from poolbench.statistics.inputs import StatisticError
from poolbench.statuses import Status


def mean_winning_rate(scores: np.ndarray) -> np.ndarray:
    """Return the share of (dataset, other model) pairs that each model wins, ties one half, missing ones skipped, [M].

    Args:
        scores: M models by N datasets, higher is better; NaN for a missing score.

    Returns:
        Rates from 0 to 1; NaN for a model that shares no dataset with another.

    Raises:
        StatisticError: `too_few` unless `scores` has two dimensions.

    Reference: Waldis et al. (2024), "Holmes: a benchmark to assess the linguistic competence of language models".
    """
    won_NM, met_NM = pair_counts(scores)
    with np.errstate(invalid="ignore", divide="ignore"):
        return won_NM.sum(axis=0) / met_NM.sum(axis=0)


def pair_counts(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs won (ties one half) and the pairs played by each model on each dataset, [N, M] each."""
    scores_MN = np.asarray(scores, dtype=np.float64)
    if scores_MN.ndim != 2:
        raise StatisticError(Status.TOO_FEW, f"scores must be models by datasets, got shape {scores_MN.shape}")
    present = ~np.isnan(scores_MN)
    met_NM = (present * (present.sum(axis=0) - 1)).T.astype(np.float64)
    first, second = scores_MN[:, None], scores_MN[None, :]
    won_NM = ((first > second) + 0.5 * (first == second)).sum(axis=1).T - 0.5 * present.T
    return won_NM, met_NM
