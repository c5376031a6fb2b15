"""Probes on passages from elsewhere: the test split, and domains that the probe was not fitted on."""

from typing import Any

import numpy as np

from poolbench.contracts.measures import Measure
from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench.steps.prober import ProbeParams
from poolbench_prober.d1.cell import ProbedCell, chosen, common_fields, score_rows
from poolbench_prober.d1.crossval import OutOfFold
from poolbench_prober.d1.metrics import Resamples, auroc_measure
from poolbench_prober.d1.reading import FittedReader
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.solver.interface import ProbeFit


def test_split(
    cell: ProbedCell, view: FittedReader, fit: ProbeFit, test: PooledVectors | None
) -> tuple[list[Measure], list[dict[str, Any]]]:
    """Return the measure and the scores, on the test split, of the probe fitted on all of train."""
    passages = cell.design.test
    if test is None or passages is None:
        return [], []
    fields = common_fields(passages, test, cell.params)
    try:
        if test.matrix_nW.shape[1] != cell.matrix_nW.shape[1]:
            widths = f"{test.matrix_nW.shape[1]}, those of train {cell.matrix_nW.shape[1]}"
            raise CellError(Status.FAILED, f"the vectors of the test split have the width {widths}")
        rows = test.require_usable(passages.labels)
        if not fit.converged[0]:
            raise CellError(Status.NOT_CONVERGED, f"gradient ratio {fit.gradient_ratio[0]:.1e} above the tolerance")
    except CellError as error:
        return [Measure.failed("d1.auroc_test", error, **fields)], []
    usable = passages.take(rows)
    scores = fit.scores(view.vectors(test.matrix_nW[rows]))[:, 0]
    fields |= {"details": chosen(view.details), "n": len(rows), "num_groups": len(np.unique(usable.groups))}
    resamples = Resamples(cell.design.test_weights[:, rows], usable.groups)
    measure = auroc_measure("d1.auroc_test", usable.labels, scores, resamples, **fields)
    return [measure], list(score_rows(usable, "test", np.full(len(rows), -1), scores))


def domain_measures(cell: ProbedCell) -> list[Measure]:
    """Return for each domain the AUROC of a probe fitted on all other domains."""
    return [_held_out_domain(cell, domain) for domain in np.unique(cell.train.domains)]


def _held_out_domain(cell: ProbedCell, domain: str) -> Measure:
    held = np.flatnonzero(cell.train.domains == domain)
    groups = cell.train.groups
    fitted = np.flatnonzero(~np.isin(groups, groups[held]))
    labels = cell.train.labels
    fields = {**cell.fields, "params": {"domain": str(domain)}}
    fields |= {"n": len(held), "num_groups": len(np.unique(groups[held]))}
    fewest = min(np.bincount(labels[rows], minlength=2).min() for rows in (held, fitted))
    if fewest < cell.params.min_domain_class:
        reason = f"{fewest} passages of a class in {domain} or outside it; {cell.params.min_domain_class} needed"
        if len(held) == len(labels):
            reason = "all passages are of one domain"
        return Measure.null("d1.auroc_domain", Status.TOO_FEW, reason, **fields)
    try:
        view, fit = cell.fit_concept(fitted)
    except CellError as error:
        return Measure.failed("d1.auroc_domain", error, **fields)
    scores = np.where(fit.converged[0], fit.scores(view.vectors(cell.matrix_nW[held]))[:, 0], np.nan)
    fields["details"] = chosen(view.details)
    return auroc_measure("d1.auroc_domain", labels[held], scores, cell.resamples.take(held), **fields)


def seed_measures(cell: ProbedCell, primary: OutOfFold) -> list[Measure]:
    """Return `d1.auroc_seed` per further seed and `d1.seed_spread` over all seeds. Empty without further seeds."""
    seeds = cell.params.fold_seeds
    if not seeds:
        return []
    measures = [_with_seed(cell, seed) for seed in seeds]
    first = auroc_measure("d1.auroc", cell.train.labels, primary.probe_nK[:, 0], cell.resamples, cell.folds)
    values = [measure.value for measure in (first, *measures)]
    lacking = next((measure for measure in (first, *measures) if measure.value is None), None)
    if lacking is not None:
        reason = f"a seed has no AUROC: {lacking.reason}"
        return [*measures, Measure.null("d1.seed_spread", lacking.status, reason, **cell.fields)]
    spread = float(np.std(np.array(values, dtype=float), ddof=1))
    details = {"seeds": [cell.params.seed, *seeds], "values": values}
    return [*measures, Measure.of("d1.seed_spread", spread, details=details, **cell.fields)]


def blank_seeds(error: CellError, params: ProbeParams, fields: dict[str, Any]) -> list[Measure]:
    """Return null figures for a cell that cannot be probed."""
    if not params.fold_seeds:
        return []
    rows = [Measure.failed("d1.auroc_seed", error, **_of(fields, seed)) for seed in params.fold_seeds]
    return [*rows, Measure.failed("d1.seed_spread", error, **fields)]


def _with_seed(cell: ProbedCell, seed: int) -> Measure:
    folds, fields = cell.design.seed_folds[seed][cell.rows], _of(cell.fields, seed)
    try:
        out_of_fold = cell.out_of_fold(cell.labels[:, :1], folds)
    except CellError as error:
        return Measure.failed("d1.auroc_seed", error, **fields)
    return auroc_measure(
        "d1.auroc_seed", cell.train.labels, out_of_fold.probe_nK[:, 0], cell.resamples, folds, **fields
    )


def _of(fields: dict[str, Any], seed: int) -> dict[str, Any]:
    return {**fields, "seed": seed, "params": {"seed": seed}}
