"""Whether a linear probe suffices: D1 once more, by a probe with a hidden layer on the same folds."""

from typing import Any

import numpy as np

from poolbench.contracts.measures import Measure
from poolbench.errors import CellError
from poolbench.statistics.auroc import auroc_resamples
from poolbench.statistics.bootstrap import percentile_interval
from poolbench.statistics.folds import grouped_folds
from poolbench.steps.prober import ProbeParams, TaskParams
from poolbench_prober.d1.cell import ProbedCell
from poolbench_prober.d1.metrics import CI_METHOD, auroc_measure
from poolbench_prober.probing.mlp import fit_outputs
from poolbench_prober.probing.models import Problem

#: One in so many groups of the training folds is kept for the choice of epoch and weight decay.
DEV_SHARE = 8
METRICS = ("d1.auroc_mlp", "d1.mlp_gain")


def linearity_measures(cell: ProbedCell, linear_n: np.ndarray) -> list[Measure]:
    """Return the AUROC of the probe with a hidden layer and its gain over the linear probe, if `hidden` is set.

    The gain is paired over the resamples of the groups. Source: the check of linearity of PoolBench's reference, which
    compares the projection on C1 with a network of two hidden layers, on folds without groups.

    Args:
        linear_n: Out-of-fold scores of the linear probe.
    """
    if cell.params.hidden is None:
        return []
    try:
        scores_n = _out_of_fold(cell, cell.params.hidden)
    except CellError as error:
        return blank_linearity(error, cell.params, cell.fields)
    labels, folds, fields = cell.train.labels, cell.folds, _fields(cell.params, cell.fields)
    of_hidden = auroc_measure("d1.auroc_mlp", labels, scores_n, cell.resamples, folds, **fields)
    if np.isnan(linear_n).any():
        linear = auroc_measure("d1.mlp_gain", labels, linear_n, cell.resamples, folds, **fields)
        return [of_hidden, linear]  # null: the linear probe did not converge
    weights_Rn, groups = cell.resamples.with_value()
    samples = [auroc_resamples(labels, scores, weights_Rn, folds, groups) for scores in (scores_n, linear_n)]
    gain_R = samples[0] - samples[1]
    interval = percentile_interval(gain_R[1:])
    return [of_hidden, Measure.of("d1.mlp_gain", gain_R[0], interval, ci_method=CI_METHOD, **fields)]


def blank_linearity(error: CellError, params: ProbeParams, fields: dict[str, Any]) -> list[Measure]:
    """Return null figures for a cell that cannot be probed."""
    if params.hidden is None:
        return []
    return [Measure.failed(name, error, **_fields(params, fields)) for name in METRICS]


def _fields(params: ProbeParams, fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "params": {"hidden": params.hidden}}


def _out_of_fold(cell: ProbedCell, hidden: int) -> np.ndarray:
    """Return the log-odds of the held-out passages of every fold [n]. Raise CellError if a fold cannot be fitted."""
    scores_n = np.empty(len(cell.rows))
    labels = cell.train.labels.astype(np.int64)
    for fold in np.unique(cell.folds):
        held, others = np.flatnonzero(cell.folds == fold), np.flatnonzero(cell.folds != fold)
        parts = grouped_folds(cell.train.groups[others], labels[others], DEV_SHARE, cell.params.seed)
        (view,) = cell.reading.views(cell.matrix_nW, cell.train, others, cell.labels[:, :1])
        rows = {"train": others[parts > 0], "dev": others[parts == 0], "test": held}
        problem = Problem(view.vectors(cell.matrix_nW), labels, rows, 2, TaskParams(), cell.params.seed)
        logits_nK, _, _ = fit_outputs(problem, hidden)
        scores_n[held] = logits_nK[held, 1] - logits_nK[held, 0]
    return scores_n
