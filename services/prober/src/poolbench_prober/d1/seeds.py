"""How much D1 depends on the draw of the folds."""

from __future__ import annotations

from typing import Any

import numpy as np

from poolbench.errors import CellError
from poolbench.steps.prober import ProbeParams
from poolbench.suites import Measure
from poolbench_prober.d1.cell import ProbedCell
from poolbench_prober.d1.crossval import OutOfFold
from poolbench_prober.d1.metrics import auroc_measure


def seed_measures(cell: ProbedCell, primary: OutOfFold) -> list[Measure]:
    """Return `d1.auroc_seed` for each further seed and `d1.seed_spread` over all; empty without such seeds."""
    seeds = cell.params.fold_seeds
    if not seeds:
        return []
    measures = [_with_seed(cell, seed) for seed in seeds]
    first = auroc_measure("d1.auroc", cell.train.labels, primary.probe_nK[:, 0], cell.resamples, cell.folds)
    values = [measure.value for measure in (first, *measures)]
    lacking = next((measure for measure in (first, *measures) if measure.value is None), None)
    if lacking is not None:
        reason = f"a seed has no AUROC: {lacking.reason}"
        return [*measures, Measure.null("d1.seed_spread", lacking.status, reason, **cell.fields, quoted=lacking.quoted)]
    spread = float(np.std(np.array(values, dtype=float), ddof=1))
    details = {"seeds": [cell.params.seed, *seeds], "values": values}
    return [*measures, Measure.of("d1.seed_spread", spread, details=details, **cell.fields)]


def blank_seeds(error: CellError, params: ProbeParams, fields: dict[str, Any]) -> list[Measure]:
    """Return the same figures of a cell that cannot be probed."""
    if not params.fold_seeds:
        return []
    rows = [Measure.failed("d1.auroc_seed", error, **_of(fields, seed)) for seed in params.fold_seeds]
    return [*rows, Measure.failed("d1.seed_spread", error, **fields)]


def _with_seed(cell: ProbedCell, seed: int) -> Measure:
    folds, fields = cell.design.seed_folds[seed][cell.rows], _of(cell.fields, seed)
    try:
        found = cell.out_of_fold(cell.labels[:, :1], folds)
    except CellError as error:
        return Measure.failed("d1.auroc_seed", error, **fields)
    return auroc_measure("d1.auroc_seed", cell.train.labels, found.probe_nK[:, 0], cell.resamples, folds, **fields)


def _of(fields: dict[str, Any], seed: int) -> dict[str, Any]:
    return {**fields, "seed": seed, "params": {"seed": seed}}
