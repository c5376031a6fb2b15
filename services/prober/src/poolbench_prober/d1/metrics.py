"""D1 measures from scores: values, intervals and the alarms beside them."""

from typing import Any, NamedTuple

import numpy as np

from poolbench.contracts.measures import Measure
from poolbench.errors import CellError
from poolbench.statistics.auroc import auroc, auroc_resamples
from poolbench.statistics.bootstrap import percentile_interval
from poolbench.statistics.paired import within_pair_accuracy
from poolbench.statuses import Status

CI_METHOD = "bootstrap over groups, percentile, conditional on the fits"
#: Fewest matched pairs for the within-pair accuracy.
MIN_PAIRS = 10
#: What an AUROC below .5 means for a fitted probe, and for a direction that is not fitted to separate the classes.
LEAKAGE = "look for leakage between folds"
FITTED = ("C1", "C1_centred", "C3", "LDA")
SIGN = "the direction's sign does not hold on the held-out folds"


class Resamples(NamedTuple):
    """Bootstrap weights [R, n] and the groups [n] that they were drawn over."""

    weights_Rn: np.ndarray
    groups: np.ndarray

    def take(self, rows: np.ndarray) -> "Resamples":
        """Return the resamples of some rows."""
        return Resamples(self.weights_Rn[:, rows], self.groups[rows])

    def with_value(self) -> "Resamples":
        """Return the resamples with a first row of ones, so that entry 0 of a resampled statistic is its value."""
        ones = np.ones((1, self.weights_Rn.shape[1]), dtype=self.weights_Rn.dtype)
        return Resamples(np.vstack([ones, self.weights_Rn]), self.groups)


def auroc_measure(
    metric: str,
    labels: np.ndarray,
    scores: np.ndarray,
    resamples: Resamples,
    strata: np.ndarray | None = None,
    below: str = LEAKAGE,
    **fields: Any,
) -> Measure:
    """Return the AUROC with its group-bootstrap interval.

    Args:
        labels: 1 positive, 0 negative [n].
        scores: Scores [n]; NaN anywhere means that the probe did not converge.
        strata: Folds of the scores, if the scores come from several models.
        below: The meaning of an AUROC below .5.
    """
    if np.isnan(scores).any():
        return Measure.null(metric, Status.NOT_CONVERGED, "a probe did not reach its tolerance", **fields)
    if len(np.unique(labels)) < 2:
        return Measure.null(metric, Status.ONE_CLASS, "the scored passages are all of one class", **fields)
    value = auroc(labels, scores, strata)
    samples = auroc_resamples(labels, scores, resamples.weights_Rn, strata, resamples.groups)
    fields.setdefault("reason", alarm(value, samples, below))
    return Measure.of(metric, value, percentile_interval(samples), ci_method=CI_METHOD, **fields)


def alarm(value: float, samples: np.ndarray, below: str) -> str | None:
    """Return a warning if an AUROC is below .5 by more than two standard errors, or else None."""
    finite = samples[np.isfinite(samples)]
    if finite.size == 0 or value >= 0.5 - 2 * finite.std():
        return None
    return f"alarm: below .5 by more than 2 standard errors ({finite.std():.4f}); {below}"


def within_pair_measure(scores: np.ndarray, pairs_P2: np.ndarray, resamples: Resamples, **fields: Any) -> Measure:
    """Return the share of matched pairs in the right order. The members of a pair share a fold and a group."""
    fields["n"] = len(pairs_P2)
    if len(pairs_P2) < MIN_PAIRS:
        note = fields.pop("reason", None)
        reason = f"{len(pairs_P2)} matched pairs; at least {MIN_PAIRS} are needed" + (f"; {note}" if note else "")
        return Measure.null("d1.within_pair", Status.TOO_FEW, reason, **fields)
    differences = scores[pairs_P2[:, 0]] - scores[pairs_P2[:, 1]]
    if np.isnan(differences).any():
        fields.pop("reason", None)
        return Measure.null("d1.within_pair", Status.NOT_CONVERGED, "a probe did not reach its tolerance", **fields)
    value = within_pair_accuracy(differences)[0]
    samples = within_pair_accuracy(differences, resamples.weights_Rn[:, pairs_P2[:, 0]])
    return Measure.of("d1.within_pair", value, percentile_interval(samples), ci_method=CI_METHOD, **fields)


def permuted_measure(labels_nK: np.ndarray, scores_nK: np.ndarray, folds: np.ndarray, **fields: Any) -> Measure:
    """Return the mean AUROC over permuted labelings. Without leakage, the mean is about .5."""
    if np.isnan(scores_nK).any():
        return Measure.null("d1.auroc_permuted", Status.NOT_CONVERGED, "a permuted probe did not converge", **fields)
    values = [auroc(labels, scores, folds) for labels, scores in zip(labels_nK.T, scores_nK.T, strict=True)]
    if not np.isfinite(values).all():
        reason = "a permuted labeling leaves no fold with both classes"
        return Measure.null("d1.auroc_permuted", Status.TOO_FEW, reason, **fields)
    details = {"values": [float(value) for value in values]}
    return Measure.of("d1.auroc_permuted", float(np.mean(values)), details=details, **fields)


def selectivity_measure(
    labels_nK: np.ndarray,
    scores_nK: np.ndarray,
    words: list[str],
    resamples: Resamples,
    folds: np.ndarray,
    **fields: Any,
) -> Measure:
    """Return the AUROC of the concept minus the mean AUROC of the control words, paired over resamples.

    Args:
        labels_nK: Labels of the concept, then of each control word. The columns of `scores_nK` have this order too.
    """
    metric = "d1.selectivity"
    if not words:
        return Measure.null(
            metric, Status.TOO_FEW, "no word is in about half of the passages of both classes", **fields
        )
    if np.isnan(scores_nK).any():
        return Measure.null(metric, Status.NOT_CONVERGED, "a probe did not reach its tolerance", **fields)
    weights, groups = resamples.with_value()
    columns = zip(labels_nK.T, scores_nK.T, strict=True)
    concept_auroc, *controls = [auroc_resamples(labels, scores, weights, folds, groups) for labels, scores in columns]
    gap = concept_auroc - np.mean(controls, axis=0)
    details = {"control_words": words, "control_auroc": float(np.mean(controls, axis=0)[0])}
    interval = percentile_interval(gap[1:])
    return Measure.of(metric, gap[0], interval, ci_method=CI_METHOD, details=details, **fields)


def direction_measure(
    name: str, found: np.ndarray | CellError, labels: np.ndarray, resamples: Resamples, folds: np.ndarray, **fields: Any
) -> Measure:
    """Return the AUROC of the out-of-fold projections on one direction."""
    metric = f"d1.direction.{name}"
    if isinstance(found, CellError):
        return Measure.failed(metric, found, direction=name, **fields)
    return auroc_measure(
        metric, labels, found, resamples, folds, LEAKAGE if name in FITTED else SIGN, direction=name, **fields
    )
