"""Pairs of passages of two classes that look alike on the surface.

Rosenbaum and Rubin, "The central role of the propensity score in observational studies for causal effects", Biometrika
1983: where two groups are matched on the probability of their class given some features, the features no longer tell
the classes apart.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from poolbench_corpora.audit.confounds import DENSE_C
from poolbench_corpora.audit.training import TEXT_FEATURES

#: Largest difference of a pair, in standard deviations of the log-odds (Austin, Pharmaceutical Statistics 2011).
CALIPER = 0.2
#: Log-odds are rounded, so that the last bits of another machine's linear algebra change no pair.
DECIMALS = 6


#: Largest mean difference of the members of pairs, in standard deviations of a feature: an AUROC of .56.
SHIFT = 0.2


def surface(texts: Sequence[str]) -> np.ndarray:
    """Return the surface features of the audit, float64 [n, F]."""
    return np.hstack([feature(texts) for feature in TEXT_FEATURES.values()])


def balanced(positives: Sequence[str], negatives: Sequence[str]) -> list[int]:
    """Return the indices of pairs whose members differ little, on average, in every surface feature.

    While the mean difference of a feature exceeds its bound, the pair goes whose absence shortens the sum of all
    differences most. If none does, the rest stays as it is.
    """
    if not positives:
        return []
    values_nF = surface([*positives, *negatives])
    spread_F = values_nF.std(axis=0)
    differences_nF = (values_nF[: len(positives)] - values_nF[len(positives) :]) / np.where(spread_F > 0, spread_F, 1)
    differences_nF = np.round(differences_nF, DECIMALS)
    rows, total_F = np.arange(len(positives)), differences_nF.sum(axis=0)
    while np.abs(total_F).max() > SHIFT * len(rows):
        gains = 2 * differences_nF[rows] @ total_F - (differences_nF[rows] ** 2).sum(axis=1)
        if gains.max() <= 0:
            break
        total_F = total_F - differences_nF[rows[gains.argmax()]]
        rows = np.delete(rows, gains.argmax())
    return rows.tolist()


def log_odds(positives: Sequence[str], negatives: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-odds of the positive class of each text, [P] and [N], by the surface features of the audit."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features_nD = surface([*positives, *negatives])
    labels = np.array([1] * len(positives) + [0] * len(negatives))
    model = make_pipeline(StandardScaler(), LogisticRegression(C=DENSE_C, tol=1e-8, max_iter=2000))
    scores = np.round(model.fit(features_nD, labels).decision_function(features_nD), DECIMALS)
    return scores[: len(positives)], scores[len(positives) :]


def matched(positives: np.ndarray, negatives: np.ndarray, caliper: float) -> Iterator[tuple[int, int]]:
    """Yield as many pairs of a positive and a negative as differ by at most the caliper, each in one pair.

    On a line, the smallest positive takes the smallest negative within its reach.

    Args:
        positives: Scores [P]; `negatives` likewise [N].
    """
    first, second = np.argsort(positives, kind="stable"), np.argsort(negatives, kind="stable")
    i = j = 0
    while i < len(first) and j < len(second):
        difference = positives[first[i]] - negatives[second[j]]
        if abs(difference) <= caliper:
            yield int(first[i]), int(second[j])
        i += difference <= caliper
        j += difference >= -caliper
