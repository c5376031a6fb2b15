"""Area under the ROC curve: plain, within strata, and for many weightings at once.

Reference: Hanley & McNeil (1982): the AUROC is the probability that a positive scores above a negative, ties
counted one half.
"""

import numpy as np

from poolbench.cancellation import check_cancelled
from poolbench.statistics.inputs import StatisticError
from poolbench.statuses import Status


def auroc(labels: np.ndarray, scores: np.ndarray, strata: np.ndarray | None = None) -> float:
    """Return the AUROC of `scores` [n] for labels 0 and 1 [n], or NaN if there is no pair or a score is NaN.

    Only pairs inside the same stratum count. A stratum is e.g. the fold of each unit: models of different folds have
    different offsets, so their scores cannot be compared.
    """
    return float(auroc_resamples(labels, scores, np.ones((1, len(labels))), strata=strata)[0])


def auroc_resamples(
    labels: np.ndarray,
    scores: np.ndarray,
    weights_Rn: np.ndarray,
    strata: np.ndarray | None = None,
    groups: np.ndarray | None = None,
) -> np.ndarray:
    """Return the AUROC under each row of weights [R, n], e.g. bootstrap counts.

    Without a pair or with a NaN score, return NaN.

    If a group is drawn w times, the pairs inside the group count w^2 times, although only w of these pairs compare a
    copy of the group with itself. If the members of a group are similar, as in matched pairs, this shifts the resamples
    by about 1 / number of groups. With `groups`, the additional pairs are left out.

    Args:
        labels: 1 positive, 0 negative [n].
        scores: Higher means more positive [n].
        weights_Rn: Weights. If `groups` is given, the members of a group have equal weights.
        strata: Stratum of each unit [n]. Only pairs inside the same stratum count.
        groups: Number of each unit's group [n], over which the weights were drawn. A group lies within a stratum.

    Raises:
        StatisticError: `failed` if labels, scores and weights differ in length.
    """
    if not len(labels) == len(scores) == np.shape(weights_Rn)[1]:
        sizes = f"{len(labels)} labels, {len(scores)} scores and {np.shape(weights_Rn)[1]} weights a row"
        raise StatisticError(Status.FAILED, f"{sizes} are not of the same units")
    if np.isnan(scores).any():  # it would sort above all others
        return np.full(len(weights_Rn), np.nan)
    concordant, pairs = np.zeros((2, len(weights_Rn)))
    positive = np.asarray(labels) == 1
    codes = np.zeros(len(positive), dtype=int) if strata is None else np.asarray(strata)
    for code in np.unique(codes):
        check_cancelled()
        inside = codes == code
        rows = np.flatnonzero(inside & positive), np.flatnonzero(inside & ~positive)
        concordance = _concordance(scores, weights_Rn, *rows)
        concordant += concordance[0]
        pairs += concordance[1]
        if groups is not None:
            copied = _between_copies(scores, weights_Rn, groups, *rows)
            concordant -= copied[0]
            pairs -= copied[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(pairs > 0, concordant / pairs, np.nan)


def _between_copies(
    scores: np.ndarray, weights_Rn: np.ndarray, groups: np.ndarray, positives: np.ndarray, negatives: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return weighted concordance and number of the pairs between different copies of one group, [R] each."""
    first, second = np.nonzero(groups[positives][:, None] == groups[negatives][None, :])
    first, second = positives[first], negatives[second]
    members, number = np.unique(groups[first], return_inverse=True)
    if len(members) == 0:
        return np.zeros(len(weights_Rn)), np.zeros(len(weights_Rn))
    order = np.where(scores[first] == scores[second], 0.5, scores[first] > scores[second])
    totals_G2 = np.stack([np.bincount(number, order), np.bincount(number)], axis=1)
    representative = np.empty(len(members), dtype=int)
    representative[number] = first
    weights_RG = weights_Rn[:, representative].astype(np.float64)
    copied = (weights_RG**2 - weights_RG) @ totals_G2
    return copied[:, 0], copied[:, 1]


def _concordance(
    scores: np.ndarray, weights_Rn: np.ndarray, positives: np.ndarray, negatives: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weighted numbers of concordant pairs and of all pairs, [R] each."""
    negatives = negatives[np.argsort(scores[negatives], kind="stable")]
    below_RN = np.zeros((len(weights_Rn), len(negatives) + 1))
    np.cumsum(weights_Rn[:, negatives], axis=1, out=below_RN[:, 1:])
    positive_RP = weights_Rn[:, positives].astype(np.float64)
    left = np.searchsorted(scores[negatives], scores[positives], side="left")
    right = np.searchsorted(scores[negatives], scores[positives], side="right")
    concordant = np.einsum("rp,rp->r", positive_RP, below_RN[:, left])
    if (left != right).any():
        concordant = (concordant + np.einsum("rp,rp->r", positive_RP, below_RN[:, right])) / 2
    return concordant, positive_RP.sum(axis=1) * below_RN[:, -1]
