"""Measures of one probing task: scores, selectivity, collapse and code lengths."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from poolbench.contracts.measures import Measure
from poolbench.errors import CellError
from poolbench.statistics.bootstrap import group_weights, percentile_interval
from poolbench.statuses import Status
from poolbench.steps.prober import TaskParams
from poolbench_prober.probing.codes import CODE_METRICS, code_measures
from poolbench_prober.probing.models import accuracy, is_constant, score
from poolbench_prober.probing.outcomes import Outcome, TaskProbes
from poolbench_prober.probing.targets import Targets

CI_METHOD = "bootstrap over groups of the test split, percentile, conditional on the fits"


def task_measures(probes: TaskProbes) -> list[Measure]:
    """Compute all figures of one task on one set of vectors, as means over the seeds.

    Returns:
        The measures named by `metric_names`, nulls included. A null measure does not affect the other measures.
    """
    targets, vectors, params = probes.targets, probes.vectors, probes.params
    fields: dict[str, Any] = {"coverage": vectors.coverage, "seed": params.seeds[0], "n": len(targets.ids)}
    if probes.error is not None:
        return [Measure.failed(name, probes.error, **fields) for name in metric_names(targets, params)]
    outcomes, usable = probes.outcomes, probes.kept
    left_out = _left_out(probes, fields)
    groups = np.unique(np.concatenate([usable.groups[outcome.test] for outcome in outcomes]))
    fields |= {"n": int(np.mean([len(outcome.test) for outcome in outcomes])), "num_groups": len(groups)}
    weights_Rn = np.zeros((1 + params.num_bootstrap, len(usable.groups)), dtype=np.float32)
    weights_Rn[0] = 1  # gives the value; the others are resamples of the groups that any seed tests on
    rows = np.isin(usable.groups, groups)
    weights_Rn[1:, rows] = group_weights(usable.groups[rows], params.num_bootstrap, params.seeds[0])
    measures = [*_scores(outcomes, usable.is_regression, weights_Rn, fields), left_out]
    measures += _of_unseen(outcomes, usable, weights_Rn, fields)
    sent = [(outcome.rows["train"], outcome.seed) for outcome in outcomes]
    return [*measures, *code_measures(usable, vectors.matrix_nW[probes.rows], params, sent, fields)]


def metric_names(targets: Targets, params: TaskParams) -> list[str]:
    """Return the metrics of a task, in order."""
    names = ["probe.pearson"] if targets.is_regression else ["probe.macro_f1", "probe.accuracy"]
    names += ["probe.selectivity"] if params.control else []
    names += ["probe.collapsed", "probe.left_out"]
    names += ["probe.seen_share", f"{names[0]}_unseen"] if targets.parts is not None else []
    return names + (list(CODE_METRICS) if params.compression else [])


def _scores(
    outcomes: Sequence[Outcome], regression: bool, weights_Rn: np.ndarray, fields: dict[str, Any]
) -> list[Measure]:
    """Return scores, selectivity and collapse; entry 0 of each column of samples is the value."""
    rows = [outcome.test for outcome in outcomes]
    own_RS = _samples(outcomes, rows, regression, weights_Rn)
    measures = [_score(_name(regression), own_RS, outcomes, rows, fields)]
    share, collapse_reason = _collapsed(outcomes, rows)
    if not regression:
        hits = [accuracy(f.truth[f.test], f.predicted[f.test], weights_Rn[:, f.test]) for f in outcomes]
        measures.append(_measure("probe.accuracy", np.stack(hits, axis=1), {**fields, "reason": collapse_reason}))
    if outcomes[0].control_truth is not None:
        measures.append(_selectivity(own_RS, outcomes, regression, weights_Rn, fields))
    return [*measures, Measure.of("probe.collapsed", share, **fields)]


def _name(regression: bool) -> str:
    return "probe.pearson" if regression else "probe.macro_f1"


def _samples(
    outcomes: Sequence[Outcome], rows: Sequence[np.ndarray], regression: bool, weights_Rn: np.ndarray
) -> np.ndarray:
    """Return the score of each seed on some of its rows under each set of weights [R, S]."""
    outcomes_and_rows = zip(outcomes, rows, strict=True)
    return np.stack(
        [score(regression, f.truth[m], f.predicted[m], weights_Rn[:, m]) for f, m in outcomes_and_rows], axis=1
    )


def _collapsed(outcomes: Sequence[Outcome], rows: Sequence[np.ndarray]) -> tuple[float, str | None]:
    """Return the share of the seeds whose probe predicts one value for all rows, and the reason to show."""
    share = float(np.mean([is_constant(outcome.predicted[m]) for outcome, m in zip(outcomes, rows, strict=True)]))
    reason = f"collapsed: the probe predicts one value for all test instances ({share:.0%} of the seeds)"
    return share, reason if share else None


def _score(
    name: str, own_RS: np.ndarray, outcomes: Sequence[Outcome], rows: Sequence[np.ndarray], fields: dict[str, Any]
) -> Measure:
    """Return a score on some rows of each seed; a correlation is null where a side is constant."""
    share, collapse_reason = _collapsed(outcomes, rows)
    if "pearson" in name and share:
        return Measure.null(name, Status.COLLAPSED, collapse_reason or "", **fields)
    if "pearson" in name and any(np.ptp(outcome.truth[m]) == 0 for outcome, m in zip(outcomes, rows, strict=True)):
        reason = "all test instances have one value: nothing correlates with it"
        return Measure.null(name, Status.ONE_CLASS, reason, **fields)
    values = [value if np.isfinite(value) else None for value in own_RS[0].tolist()]
    details = {"fits": [outcome.details for outcome in outcomes], "values": values}
    return _measure(name, own_RS, {**fields, "reason": collapse_reason, "details": details})


def _left_out(probes: TaskProbes, fields: dict[str, Any]) -> Measure:
    """Return the number of instances without a vector, with the first of them and its reason."""
    left_out = probes.left_out()
    if not left_out:
        return Measure.of("probe.left_out", 0, **fields)
    row = min(left_out, key=lambda row: probes.targets.ids[row])
    error, name = left_out[row], repr(probes.targets.ids[row])
    reason = f"{len(left_out)} of {len(probes.targets.ids)} instances have no vector, e.g. {name}: {error}"
    counts = Counter(str(failure.status) for failure in left_out.values())
    noted: dict[str, Any] = {"reason": reason, "details": {"statuses": dict(counts)}}
    return Measure.of("probe.left_out", len(left_out), **fields, **noted)


def _of_unseen(
    outcomes: Sequence[Outcome], targets: Targets, weights_Rn: np.ndarray, fields: dict[str, Any]
) -> list[Measure]:
    """Return the share of test instances that are whole in train too, and the score on the others."""
    if any(outcome.seen is None for outcome in outcomes):
        return []
    seen = [np.asarray(outcome.seen)[outcome.test] for outcome in outcomes]
    share = Measure.of("probe.seen_share", float(np.mean([seen_m.mean() for seen_m in seen])), **fields)
    rows = [outcome.test[~seen_m] for outcome, seen_m in zip(outcomes, seen, strict=True)]
    name, fewest = f"{_name(targets.is_regression)}_unseen", min(map(len, rows))
    fields = fields | {
        "n": int(np.mean([len(seen_m) for seen_m in rows])),
        "num_groups": len(np.unique(targets.groups[np.concatenate(rows)])),
    }
    if fewest < 2:
        reason = f"{fewest} test instances are not in train too; 2 are needed"
        return [share, Measure.null(name, Status.TOO_FEW, reason, **fields)]
    samples_RS = _samples(outcomes, rows, targets.is_regression, weights_Rn)
    return [share, _score(name, samples_RS, outcomes, rows, fields)]


def _selectivity(
    own_RS: np.ndarray, outcomes: Sequence[Outcome], regression: bool, weights_Rn: np.ndarray, fields: dict[str, Any]
) -> Measure:
    """Return score minus the score of the control probe, paired over resamples.

    A control probe that predicts one value has no Pearson correlation and explains nothing: it counts as 0.
    """
    columns = []
    for outcome in outcomes:
        assert outcome.control_truth is not None and outcome.control is not None
        if isinstance(outcome.control, CellError):
            return Measure.failed("probe.selectivity", outcome.control, **fields)
        truth, predicted = outcome.control_truth[outcome.test], outcome.control[outcome.test]
        columns.append(score(regression, truth, predicted, weights_Rn[:, outcome.test]))
    control_RS = np.nan_to_num(np.stack(columns, axis=1), nan=0.0) if regression else np.stack(columns, axis=1)
    if not np.isfinite(own_RS[0]).all():
        return Measure.null("probe.selectivity", Status.COLLAPSED, "the probe has no correlation to compare", **fields)
    details = {"control": float(control_RS[0].mean())}
    return _measure("probe.selectivity", own_RS - control_RS, {**fields, "details": details})


def _measure(metric: str, samples_RS: np.ndarray, fields: dict[str, Any]) -> Measure:
    means_R = samples_RS.mean(axis=1)
    interval = percentile_interval(means_R[1:]) if len(means_R) > 1 else None
    return Measure.of(metric, means_R[0], interval, ci_method=CI_METHOD, **fields)
