"""D1 beyond what the surface of the passages gives away."""

from typing import Any

import numpy as np

from poolbench.contracts.measures import Measure
from poolbench.statistics import auroc_resamples, percentile_interval
from poolbench.statuses import Status

METRIC = "d1.excess_over_confound"
EXCESS_CI_METHOD = "paired bootstrap over groups, percentile, conditional on the fits and on the confound"


def excess_over_confound(
    labels: np.ndarray,
    scores: np.ndarray,
    confound_scores: np.ndarray,
    folds: np.ndarray,
    weights_Rn: np.ndarray,
    groups: np.ndarray,
    *,
    confound: str,
    **fields: Any,
) -> Measure:
    """Return the AUROC of the concept's probe minus that of the confound's, paired by fold and over resamples.

    Args:
        labels: 1 positive, 0 negative [n].
        scores: Out-of-fold scores of D1's probe [n]; NaN anywhere means that it did not converge.
        confound_scores: Out-of-fold scores of the confound's probe on the same folds [n].
        folds: Fold of each passage [n]; only pairs inside a fold are compared.
        weights_Rn: Bootstrap weights over the groups [R, n].
        groups: Groups of the passages [n].
        confound: Name of the confound.
    """
    if np.isnan(scores).any():
        return Measure.null(METRIC, Status.NOT_CONVERGED, "a probe did not reach its tolerance", **fields)
    if len(np.unique(labels)) < 2:
        return Measure.null(METRIC, Status.ONE_CLASS, "the scored passages are all of one class", **fields)
    weights_Rn = np.vstack([np.ones_like(weights_Rn[:1], shape=(1, len(labels))), weights_Rn])
    auroc, other = (auroc_resamples(labels, probe, weights_Rn, folds, groups) for probe in (scores, confound_scores))
    gap = auroc - other
    details = {"confound": confound, "confound_auroc": float(other[0])}
    interval = percentile_interval(gap[1:])
    return Measure.of(METRIC, gap[0], interval, ci_method=EXCESS_CI_METHOD, details=details, **fields)
