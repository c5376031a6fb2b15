"""Winning rates of models over datasets, and how stable the order of the models is."""

from typing import Literal

import numpy as np

from poolbench.statistics.bootstrap import bootstrap_counts
from poolbench.statistics.inputs import StatisticError
from poolbench.statuses import Status
from poolbench_driver.statistics.correlation import kendall

#: Between whose minimum and maximum published ranks are scaled: those of the dataset, or of the model.
Scale = Literal["row", "column"]


def mean_winning_rate(scores: np.ndarray) -> np.ndarray:
    """Return the share of (dataset, other model) pairs that each model wins, ties one half, missing ones skipped, [M].

    Scores are models by datasets, higher is better, NaN if missing. A model without a common dataset gets NaN. Raise
    StatisticError `too_few` unless `scores` has two dimensions.

    Reference: Waldis et al. (2024), "Holmes: a benchmark to assess the linguistic competence of language models".
    """
    won_NM, met_NM = pair_counts(scores)
    with np.errstate(invalid="ignore", divide="ignore"):
        return won_NM.sum(axis=0) / met_NM.sum(axis=0)


def pair_counts(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs won (ties one half) and the pairs played by each model on each dataset, [N, M] each."""
    scores_MN = _by_dataset(scores)
    present = ~np.isnan(scores_MN)
    met_NM = (present * (present.sum(axis=0) - 1)).T.astype(np.float64)
    first, second = scores_MN[:, None], scores_MN[None, :]
    won_NM = ((first > second) + 0.5 * (first == second)).sum(axis=1).T - 0.5 * present.T
    return won_NM, met_NM


def published_winning_rate(scores: np.ndarray, scale: Scale = "row") -> np.ndarray:
    """Return the winning rate of each model as the public leaderboard computes it [M].

    The models are ranked on each dataset, the worst is 1, and tied models share the highest of their ranks. Ranks are
    scaled to 0 ... 1 between their minimum and maximum, and averaged over the datasets. Missing scores are skipped.
    Ranks without a spread have no scale: a dataset that ties all its models is skipped (`row`), and a model with the
    same rank everywhere is NaN (`column`).

    Example: the models A, B, C have the scores .9 .8 .8 on the first dataset, .5 .6 and none on the second, and .7 .7
    .4 on the third. Their ranks are 3 2 2, 1 2 and none, 3 3 1. `row` gives .667 .667 .000, `column` .667 .333 .500,
    and `mean_winning_rate` .700 .600 .125.

    Args:
        scores: M models by N datasets, higher is better, NaN if missing.
        scale: `row`, minimum and maximum of the dataset (a row of the published table); `column`, of the model.

    Raises:
        StatisticError: `too_few` unless `scores` has two dimensions.
    """
    return present_means(scaled_ranks(scores, scale))


def scaled_ranks(scores: np.ndarray, scale: Scale = "row") -> np.ndarray:
    """Return the scaled ranks whose means are `published_winning_rate` [M, N], NaN where there is no score or scale.

    Arguments and error are those of `published_winning_rate`. The published tables by type of phenomenon are means of
    ranks that were scaled over all datasets, which differ for `column` from ranks that are scaled within the type.
    """
    ranks_MN = _published_ranks(scores)
    axis = 0 if scale == "row" else 1
    low = np.nanmin(ranks_MN, axis=axis, keepdims=True, initial=np.inf)  # infinite, and no warning, without a score
    high = np.nanmax(ranks_MN, axis=axis, keepdims=True, initial=-np.inf)
    with np.errstate(invalid="ignore"):
        return np.asarray((ranks_MN - low) / (high - low))


def winning_rate_resamples(scores: np.ndarray, weights: np.ndarray, scale: Scale | None = None) -> np.ndarray:
    """Return the winning rates of the models under several weightings of the datasets [R, M].

    Weights of ones give `mean_winning_rate` without a scale, and `published_winning_rate` with one. A model is scaled
    (`column`) over the datasets of positive weight.

    Args:
        scores: M models by N datasets, higher is better, NaN if missing.
        weights: R weightings by N datasets, such as the counts of a bootstrap.
        scale: None for pairs of models; else as in `published_winning_rate`.

    Raises:
        StatisticError: `too_few` unless `scores` has two dimensions.
    """
    weights_RN = np.asarray(weights, dtype=np.float64)
    if scale is None:
        won_NM, met_NM = pair_counts(scores)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray((weights_RN @ won_NM) / (weights_RN @ met_NM))
    if scale == "row":
        return present_means(scaled_ranks(scores), weights_RN).T
    ranks_MN = _published_ranks(scores)
    low_MR, high_MR = np.empty((2, len(ranks_MN), len(weights_RN)))
    for number, drawn in enumerate(weights_RN > 0):
        low_MR[:, number] = np.nanmin(ranks_MN[:, drawn], axis=1, initial=np.inf)
        high_MR[:, number] = np.nanmax(ranks_MN[:, drawn], axis=1, initial=-np.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(((present_means(ranks_MN, weights_RN) - low_MR) / (high_MR - low_MR)).T)


def _published_ranks(scores: np.ndarray) -> np.ndarray:
    """Return the rank of each model on each dataset [M, N]: the worst is 1, ties share the highest rank."""
    from scipy import stats

    ranked = stats.rankdata(_by_dataset(scores), method="max", axis=0, nan_policy="omit")
    return np.asarray(ranked, dtype=np.float64)


def present_means(values: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the means of the present values of each row [M], NaN for a row without any.

    Args:
        values: M rows by N values, NaN if missing.
        weights: R weightings by N values; the means are then [M, R].
    """
    weights_NR = np.ones(values.shape[1]) if weights is None else np.asarray(weights).T
    present = ~np.isnan(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((np.where(present, values, 0.0) @ weights_NR) / (present @ weights_NR))


def discriminability(scores: np.ndarray) -> np.ndarray:
    """Return Kendall's tau-b of each dataset's order of the models with the overall order [N].

    The overall order is by mean winning rate. It includes the dataset itself, which raises the figure slightly if
    datasets are few. NaN if a dataset ties all of its models or has fewer than three.

    Reference: Waldis et al. (2024), "Holmes".
    """
    scores_MN = np.asarray(scores, dtype=np.float64)
    overall = mean_winning_rate(scores_MN)
    both_MN = ~np.isnan(scores_MN) & ~np.isnan(overall)[:, None]
    return np.array(
        [kendall(row[both], overall[both]) for row, both in zip(scores_MN.T, both_MN.T, strict=True)], dtype=np.float64
    )


def rank_resolution(scores: np.ndarray, *, num_resamples: int = 1000, seed: int = 0) -> float:
    """Return the 95th percentile of |rank change| over models and resamples of the datasets.

    Smaller differences of ranks mean nothing. Ranks are by mean winning rate, with ties shared.

    Args:
        scores: M models by N datasets, higher is better; NaN for a missing score.
        num_resamples: Resamples of the datasets.
        seed: Seed of the resamples.

    Raises:
        StatisticError: `too_few` below 2 models or datasets, or if no two resamples rank a model.

    Reference: Waldis et al. (2024), "Holmes", FlashHolmes; the percentile under the bootstrap is ours.
    """
    scores_MN = np.asarray(scores, dtype=np.float64)
    if scores_MN.ndim != 2 or min(scores_MN.shape) < 2:
        raise StatisticError(Status.TOO_FEW, f"need at least 2 models and 2 datasets, got shape {scores_MN.shape}")
    full_M, weights_RN = _ranks(mean_winning_rate(scores_MN)), bootstrap_counts(scores_MN.shape[1], num_resamples, seed)
    changes_RM = _ranks(winning_rate_resamples(scores_MN, weights_RN)) - full_M
    changes = changes_RM[np.isfinite(changes_RM)]
    if changes.size < 2:
        raise StatisticError(Status.TOO_FEW, "no two models were measured on a common dataset: there are no ranks")
    return float(np.percentile(np.abs(changes), 95))


def _by_dataset(scores: np.ndarray) -> np.ndarray:
    """Return the scores in float64 [M, N]; raise StatisticError `too_few` unless they have two dimensions."""
    scores_MN = np.asarray(scores, dtype=np.float64)
    if scores_MN.ndim != 2:
        raise StatisticError(Status.TOO_FEW, f"scores must be models by datasets, got shape {scores_MN.shape}")
    return scores_MN


def _ranks(rates: np.ndarray) -> np.ndarray:
    """Return ranks along the last axis, 1 is the lowest rate; NaN stays NaN."""
    from scipy import stats

    return stats.rankdata(rates, axis=-1, nan_policy="omit")
