"""Sparse probing: how well few features of an autoencoder tell passages with a concept from those without.

sparse_measures((train passages, features), (test passages, features), params) -> measures
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_matrix

from poolbench.cancellation import check_cancelled
from poolbench.contracts.measures import Measure
from poolbench.errors import CellError
from poolbench.statistics.auroc import auroc
from poolbench.statistics.bootstrap import group_weights
from poolbench.statistics.folds import MIN_GROUPS, grouped_folds
from poolbench.statuses import Status
from poolbench.steps.prober import SparseParams
from poolbench_prober.contrast.features import ALL, commonest, read_features
from poolbench_prober.d1.metrics import Resamples, auroc_measure
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import MIN_USABLE
from poolbench_prober.solver.fits import fit_probes
from poolbench_prober.solver.interface import ProbeFit

AUROC, AUROC_TEST, SPREAD = SPARSE_METRICS = ("sparse.auroc", "sparse.auroc_test", "sparse.seed_spread")
#: Variance over the mean square below which the values of a feature differ by rounding alone.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class _Split:
    """The usable passages of a split, with their mean features [n, F]."""

    passages: Passages
    means_nF: csr_matrix
    coverage: float

    @classmethod
    def read(cls, passages: Passages, features: pa.Table) -> Self:
        """Read a split. Raise CellError with the commonest status if over a tenth of its passages have no features.

        Raise InputError for a malformed table, or for a table that lacks a passage.
        """
        story_features = read_features([features], passages.ids)
        usable = np.array([row for row in range(len(passages.ids)) if row not in story_features.errors], dtype=int)
        if len(usable) < MIN_USABLE * len(passages.ids):
            lacking = f"of {len(passages.ids)} passages have no features"
            raise commonest(list(story_features.errors.values()), lacking)
        if not story_features.parts[ALL].means_PF[usable].nnz:
            raise CellError(Status.COLLAPSED, "no feature is active in any of the passages")
        return cls(passages.take(usable), story_features.parts[ALL].means_PF[usable], len(usable) / len(passages.ids))

    def fields(self, seed: int) -> dict[str, Any]:
        """Return the fields that measures of this split share."""
        counts = {"n": len(self.passages.ids), "num_groups": len(np.unique(self.passages.groups))}
        return {**counts, "coverage": self.coverage, "seed": seed}

    def resamples(self, params: SparseParams) -> Resamples:
        """Return the bootstrap over the groups."""
        groups = self.passages.groups
        return Resamples(group_weights(groups, params.num_bootstrap, params.seed), groups)


def sparse_measures(
    train: tuple[Passages, pa.Table], test: tuple[Passages, pa.Table], params: SparseParams
) -> list[Measure]:
    """Return the AUROC of logistic probes that read k features of an autoencoder, for each k.

    The k features are those with the largest absolute difference between the class means, in pooled standard
    deviations, of the passages that the probe is fitted on. `sparse.auroc` is out of fold, with the folds of D1, so
    that it is comparable with `d1.auroc` and `d1.direction.*` of the same passages. `sparse.auroc_test` is the AUROC on
    the test split of the probe fitted on all train passages. `sparse.seed_spread` is the standard deviation of
    `sparse.auroc` over the seeds of folds.

    Args:
        train: Passages and their FEATURES under one autoencoder.
        test: Passages and FEATURES of the test split.
        params: Parameters of the step.

    Raises:
        InputError: A table is malformed or lacks a passage.

    Reference: Karvonen et al. (2025), SAEBench, after Gurnee et al. (2023). They choose by the plain difference and
    report accuracy. Division by standard deviations makes the choice independent of the scale of a feature.
    """
    passages = train[0]
    try:
        fitted = _Split.read(*train)
        folds = _folds(fitted.passages, params, params.seed)
    except CellError as error:
        fields = {"n": len(passages.ids), "num_groups": len(np.unique(passages.groups)), "seed": params.seed}
        return [_failed(metric, error, k, fields) for k in params.ks for metric in SPARSE_METRICS]
    try:
        held_out: _Split | CellError = _Split.read(*test)
    except CellError as error:
        held_out = error
    return [measure for k in params.ks for measure in _of_k(fitted, folds, held_out, k, params)]


def _folds(passages: Passages, params: SparseParams, seed: int) -> np.ndarray:
    """Return the folds of D1. Raise CellError `one_class` or `too_few`."""
    return grouped_folds(passages.groups, passages.labels, params.folds, seed, min_groups=MIN_GROUPS)


def _failed(metric: str, error: CellError, k: int, fields: dict[str, Any]) -> Measure:
    return Measure.failed(metric, error, params={"k": k}, **fields)


def _of_k(
    train: _Split, folds: np.ndarray, test: _Split | CellError, k: int, params: SparseParams
) -> Iterator[Measure]:
    """Yield the measures of probes with k features."""
    check_cancelled()
    fields, labels = train.fields(params.seed), train.passages.labels
    if k > train.means_nF.shape[1]:
        reason = f"the autoencoder has {train.means_nF.shape[1]} features; {k} are needed"
        yield from (_failed(metric, CellError(Status.TOO_FEW, reason), k, fields) for metric in SPARSE_METRICS)
        return
    scores = _out_of_fold(train, folds, k, params)
    yield auroc_measure(AUROC, labels, scores, train.resamples(params), folds, params={"k": k}, **fields)
    feature_numbers, fit = _fit(train.means_nF, labels, k, params)
    if isinstance(test, CellError):
        yield _failed(AUROC_TEST, test, k, {"seed": params.seed})
    else:
        read = _scores(test.means_nF, feature_numbers, fit)
        test_fields = {
            **test.fields(params.seed),
            "params": {"k": k},
            "details": {"features": feature_numbers.tolist()},
        }
        yield auroc_measure(AUROC_TEST, test.passages.labels, read, test.resamples(params), **test_fields)
    yield _spread(train, folds, scores, k, params)


def _spread(train: _Split, folds: np.ndarray, scores: np.ndarray, k: int, params: SparseParams) -> Measure:
    """Return the standard deviation of the AUROC over the seeds of folds."""
    fields = train.fields(params.seed)
    try:
        drawn = [_folds(train.passages, params, seed) for seed in params.fold_seeds]
    except CellError as error:
        return _failed(SPREAD, error, k, fields)
    scores_and_folds = [
        (scores, folds),
        *((_out_of_fold(train, seed_folds, k, params), seed_folds) for seed_folds in drawn),
    ]
    if len(scores_and_folds) < 2:
        return _failed(SPREAD, CellError(Status.TOO_FEW, "no further seeds of folds are given"), k, fields)
    if any(np.isnan(values).any() for values, _ in scores_and_folds):
        return _failed(SPREAD, CellError(Status.NOT_CONVERGED, "a probe did not reach its tolerance"), k, fields)
    values = [auroc(train.passages.labels, seed_folds, strata) for seed_folds, strata in scores_and_folds]
    details = {"seeds": [params.seed, *params.fold_seeds], "values": values}
    return Measure.of(SPREAD, float(np.std(values, ddof=1)), params={"k": k}, details=details, **fields)


def _out_of_fold(train: _Split, folds: np.ndarray, k: int, params: SparseParams) -> np.ndarray:
    """Return the score of each passage by the probe of the other folds [n]; features are chosen there as well."""
    scores_n = np.full(len(folds), np.nan)
    for fold in np.unique(folds):
        inside, held = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        feature_numbers, fit = _fit(train.means_nF[inside], train.passages.labels[inside], k, params)
        scores_n[held] = _scores(train.means_nF[held], feature_numbers, fit)
    return scores_n


def _fit(means_nF: csr_matrix, labels: np.ndarray, k: int, params: SparseParams) -> tuple[np.ndarray, ProbeFit]:
    feature_numbers = strongest(means_nF, labels, k)
    matrix_nk = means_nF[:, feature_numbers].toarray().astype(np.float64)
    return feature_numbers, fit_probes(matrix_nk, labels[:, None], np.array([params.primary_c]), params.tolerance)


def _scores(means_nF: csr_matrix, feature_numbers: np.ndarray, fit: ProbeFit) -> np.ndarray:
    """Return the scores [n]; NaN if the probe did not converge."""
    scores_n = fit.scores(means_nF[:, feature_numbers].toarray().astype(np.float64))[:, 0]
    return np.asarray(np.where(fit.converged[0], scores_n, np.nan))


def strongest(means_nF: csr_matrix, labels: np.ndarray, k: int) -> np.ndarray:
    """Return the k features whose class means differ most, in pooled standard deviations. The first wins ties.

    A feature that is constant within both classes and differs between them comes first.
    """
    classes = [means_nF[np.flatnonzero(labels == label)].astype(np.float64) for label in (1, 0)]
    means_2F = np.stack([np.asarray(rows_nF.mean(axis=0)).ravel() for rows_nF in classes])
    squares_2F = np.stack([np.asarray(rows_nF.multiply(rows_nF).mean(axis=0)).ravel() for rows_nF in classes])
    counts_2 = np.array([[rows_nF.shape[0]] for rows_nF in classes])
    variances_2F = np.maximum(squares_2F - means_2F**2, 0.0)
    variances_2F[variances_2F < _ROUNDING * squares_2F] = 0.0
    pooled_F = (counts_2 * variances_2F).sum(axis=0) / max(1, int(counts_2.sum()) - 2)
    difference_F = np.abs(means_2F[0] - means_2F[1])
    apart_F = np.full(len(difference_F), np.inf)
    np.divide(difference_F, np.sqrt(pooled_F), out=apart_F, where=pooled_F > 0)
    apart_F[difference_F == 0] = 0.0
    return np.argsort(-apart_F, kind="stable")[:k]
