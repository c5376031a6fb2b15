"""Compare each dataset's order of the models with the overall order."""

import numpy as np

from poolbench.statistics.correlation import kendall
from poolbench.statistics.winning_rate import pair_counts


def discriminability(scores: np.ndarray, *, leave_one_out: bool = False) -> np.ndarray:
    """Return Kendall's tau-b of each dataset's order of the models with the overall order [N].

    The overall order is by mean winning rate. It includes the dataset itself, which raises the figure slightly if
    datasets are few.

    Args:
        scores: M models by N datasets, higher is better; NaN for a missing score.
        leave_one_out: Compare each dataset with the order of the others.

    Returns:
        Correlations from -1 to 1; NaN if a dataset ties all of its models or has fewer than two.

    Reference: Waldis et al. (2024), "Holmes".
    """
    scores_MN = np.asarray(scores, dtype=np.float64)
    won_NM, met_NM = pair_counts(scores_MN)
    taus = np.full(scores_MN.shape[1], np.nan)
    for dataset in range(len(taus)):
        left = np.arange(len(taus)) != dataset if leave_one_out else np.ones(len(taus), dtype=bool)
        with np.errstate(invalid="ignore", divide="ignore"):
            overall = won_NM[left].sum(axis=0) / met_NM[left].sum(axis=0)
        both = ~np.isnan(scores_MN[:, dataset]) & ~np.isnan(overall)
        if both.sum() >= 2:
            taus[dataset] = kendall(scores_MN[both, dataset], overall[both])
    return taus
