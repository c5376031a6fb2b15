"""Measures of one probing task: scores, selectivity, collapse and code lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poolbench.contracts.measures import Measure
from poolbench.errors import CellError
from poolbench.statistics import group_weights, percentile_interval
from poolbench.statuses import Status
from poolbench.steps.prober import TaskParams
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.tasks.codes import CODE_METRICS, Sent, code_measures
from poolbench_prober.tasks.models import (
    Linear,
    accuracy,
    fit_classifiers,
    fit_regressions,
    is_constant,
    macro_f1,
    weighted_pearson,
)
from poolbench_prober.tasks.targets import Targets, control_values

CI_METHOD = "bootstrap over groups of the test split, percentile, conditional on the fits"


def task_measures(targets: Targets, vectors: PooledVectors, params: TaskParams) -> list[Measure]:
    """Return all figures of one task on one set of vectors.

    Several seeds draw several splits (where none is given), control labels and shuffles; a value is their mean.

    Args:
        targets: What to predict, in the order of the vectors.
        vectors: One row per instance; `joined` concatenates the parts of a span pair.

    Returns:
        The measures named by `metric_names`, nulls included. One that cannot be computed does not affect the others.
    """
    fields: dict[str, Any] = {"coverage": vectors.coverage, "seed": params.seeds[0], "n": len(targets.ids)}
    names = metric_names(targets, params)
    try:
        rows = vectors.require_usable(None)
        kept = targets.take(rows)
        found = [_Found.of(kept, vectors.matrix_nW[rows], params, seed) for seed in params.seeds]
    except CellError as error:
        return [Measure.failed(name, error, **fields) for name in names]
    groups = np.unique(np.concatenate([kept.groups[each.test] for each in found]))
    fields |= {"n": int(np.mean([len(each.test) for each in found])), "num_groups": len(groups)}
    measures = _scores(found, kept, _test_weights(kept.groups, groups, params), fields)
    sent = [Sent(each.train, seed) for each, seed in zip(found, params.seeds, strict=True)]
    return [*measures, *code_measures(kept, vectors.matrix_nW[rows], params, sent, fields)]


def _test_weights(groups: np.ndarray, tested: np.ndarray, params: TaskParams) -> np.ndarray:
    """Return bootstrap weights [1 + R, n] over the groups that any seed tests on; row 0, of ones, gives the value."""
    weights_Rn = np.zeros((1 + params.num_bootstrap, len(groups)), dtype=np.float32)
    weights_Rn[0] = 1
    rows = np.isin(groups, tested)
    weights_Rn[1:, rows] = group_weights(groups[rows], params.num_bootstrap, params.seeds[0])
    return weights_Rn


def metric_names(targets: Targets, params: TaskParams) -> list[str]:
    """Return the metrics of a task, in order."""
    names = ["probe.pearson"] if targets.is_regression else ["probe.macro_f1", "probe.accuracy"]
    names += ["probe.selectivity"] if params.control else []
    names += ["probe.collapsed"]
    return names + (list(CODE_METRICS) if params.compression else [])


@dataclass(frozen=True)
class _Found:
    """The probe of one seed, and its control.

    Attributes:
        train: Rows that it was fitted on.
        test: Rows that it is scored on.
        truth: Their class numbers or values.
        control_truth: Their control labels; None without control task.
        control_predicted: The control probe's predictions, or why there are none; the probe itself is not affected.
        details: C, convergence.
    """

    train: np.ndarray
    test: np.ndarray
    truth: np.ndarray
    predicted: np.ndarray
    control_truth: np.ndarray | None
    control_predicted: np.ndarray | CellError | None
    details: dict[str, Any]

    @classmethod
    def of(cls, targets: Targets, matrix_nD: np.ndarray, params: TaskParams, seed: int) -> _Found:
        """Split, fit on train, choose C on dev, and predict test; raise CellError if a part is impossible."""
        rows = targets.split(seed)
        train, test = rows["train"], rows["test"]
        fits = _fit(matrix_nD[train], targets.values[train], targets, params.choices(len(rows["dev"])), params)
        c, fit = _best_on_dev(fits, matrix_nD[rows["dev"]], targets.values[rows["dev"]], targets)
        control_truth: np.ndarray | None = None
        control_predicted: np.ndarray | CellError | None = None
        if params.control:
            values = control_values(targets, train, params.control, seed)
            control_truth = values[test]
            control_predicted = _control(matrix_nD, values, train, test, targets, c, params)
        details = {"C": c, "gradient_ratio": fit.linear.gradient_ratio, "num_iterations": fit.linear.num_iterations}
        predicted = _predict(fit, matrix_nD[test], targets)
        return cls(train, test, targets.values[test], predicted, control_truth, control_predicted, details)


@dataclass(frozen=True)
class _Fit:
    """A linear map, and the class that each of its columns stands for."""

    linear: Linear
    classes: np.ndarray


def _fit(
    vectors_nD: np.ndarray, values: np.ndarray, targets: Targets, c_values: Sequence[float], params: TaskParams
) -> dict[float, _Fit]:
    """Return a fit for each C. A class without training instance is never predicted."""
    if targets.is_regression:
        fits, classes = fit_regressions(vectors_nD, values, c_values, params.tolerance), np.zeros(0, dtype=int)
    else:
        classes, codes = np.unique(values, return_inverse=True)
        if len(classes) < 2:
            raise CellError(Status.ONE_CLASS, "the control task has one class in train: its word types share one label")
        fits = fit_classifiers(vectors_nD, codes, len(classes), c_values, params.tolerance)
    for c, fit in zip(c_values, fits, strict=True):
        if not fit.converged:
            raise CellError(
                Status.NOT_CONVERGED, f"gradient ratio {fit.gradient_ratio:.1e} above the tolerance, C = {c}"
            )
    return {c: _Fit(fit, classes) for c, fit in zip(c_values, fits, strict=True)}


def _predict(fit: _Fit, vectors_mD: np.ndarray, targets: Targets) -> np.ndarray:
    scores_mK = fit.linear.scores(vectors_mD)
    return scores_mK[:, 0] if targets.is_regression else fit.classes[scores_mK.argmax(axis=1)]


def _control(
    matrix_nD: np.ndarray,
    values: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    targets: Targets,
    c: float,
    params: TaskParams,
) -> np.ndarray | CellError:
    """Return the predictions of the control probe on test, or why there are none."""
    try:
        fit = _fit(matrix_nD[train], values[train], targets, [c], params)[c]
    except CellError as error:
        return error
    return _predict(fit, matrix_nD[test], targets)


def _best_on_dev(
    fits: dict[float, _Fit], vectors_mD: np.ndarray, values: np.ndarray, targets: Targets
) -> tuple[float, _Fit]:
    """Return the C with the best score on dev; of equal ones the smallest."""
    if len(fits) > 1:
        ones = np.ones((1, len(values)))
        predicted = {c: _predict(fit, vectors_mD, targets) for c, fit in fits.items()}
        score = {c: float(_samples(targets.is_regression, values, of, ones)[0]) for c, of in predicted.items()}
        best = max(sorted(fits), key=lambda c: np.nan_to_num(score[c], nan=-np.inf))
        return best, fits[best]
    return next(iter(fits.items()))


def _samples(regression: bool, truth: np.ndarray, predicted: np.ndarray, weights_Rm: np.ndarray) -> np.ndarray:
    return (weighted_pearson if regression else macro_f1)(truth, predicted, weights_Rm)


def _scores(found: Sequence[_Found], targets: Targets, weights_Rn: np.ndarray, fields: dict[str, Any]) -> list[Measure]:
    """Return scores, selectivity and collapse; entry 0 of each column of samples is the value."""
    regression = targets.is_regression
    own_RS = np.stack([_samples(regression, f.truth, f.predicted, weights_Rn[:, f.test]) for f in found], axis=1)
    details = {"fits": [each.details for each in found], "values": own_RS[0].tolist()}
    share = float(np.mean([is_constant(each.predicted) for each in found]))
    said = f"collapsed: the probe predicts one value for all test instances ({share:.0%} of the seeds)"
    noted: dict[str, Any] = {**fields, "reason": said if share else None}
    if regression and share:
        measures = [Measure.null("probe.pearson", Status.COLLAPSED, said, **fields)]
    elif regression and any(np.ptp(each.truth) == 0 for each in found):
        reason = "all test instances have one value: nothing correlates with it"
        measures = [Measure.null("probe.pearson", Status.ONE_CLASS, reason, **fields)]
    else:
        name = "probe.pearson" if regression else "probe.macro_f1"
        measures = [_measure(name, own_RS, {**noted, "details": _finite(details)})]
    if not regression:
        hits_RS = np.stack([accuracy(f.truth, f.predicted, weights_Rn[:, f.test]) for f in found], axis=1)
        measures.append(_measure("probe.accuracy", hits_RS, noted))
    if found[0].control_truth is not None:
        measures.append(_selectivity(own_RS, found, regression, weights_Rn, fields))
    return [*measures, Measure.of("probe.collapsed", share, **fields)]


def _selectivity(
    own_RS: np.ndarray, found: Sequence[_Found], regression: bool, weights_Rn: np.ndarray, fields: dict[str, Any]
) -> Measure:
    """Return score minus the score of the control probe, paired over resamples.

    A control probe that predicts one value has no Pearson correlation and explains nothing: it counts as 0.
    """
    columns = []
    for each in found:
        assert each.control_truth is not None and each.control_predicted is not None
        if isinstance(each.control_predicted, CellError):
            return Measure.failed("probe.selectivity", each.control_predicted, **fields)
        columns.append(_samples(regression, each.control_truth, each.control_predicted, weights_Rn[:, each.test]))
    control_RS = np.nan_to_num(np.stack(columns, axis=1), nan=0.0) if regression else np.stack(columns, axis=1)
    if not np.isfinite(own_RS[0]).all():
        return Measure.null("probe.selectivity", Status.COLLAPSED, "the probe has no correlation to compare", **fields)
    details = {"control": float(control_RS[0].mean())}
    return _measure("probe.selectivity", own_RS - control_RS, {**fields, "details": details})


def _measure(metric: str, samples_RS: np.ndarray, fields: dict[str, Any]) -> Measure:
    means_R = samples_RS.mean(axis=1)
    interval = percentile_interval(means_R[1:]) if len(means_R) > 1 else None
    return Measure.of(metric, means_R[0], interval, ci_method=CI_METHOD, **fields)


def _finite(details: dict[str, Any]) -> dict[str, Any]:
    """Return details without numbers that JSON cannot represent."""
    return {**details, "values": [value if np.isfinite(value) else None for value in details["values"]]}
