"""D1 of one (concept, strategy, layer): vectors and design in; measures, directions and scores out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from poolbench.directions import (
    Direction,
    DirectionContext,
    compute_direction,
    implemented_directions,
    null_directions,
)
from poolbench.errors import CellError
from poolbench.suites import Measure
from poolbench_prober.config import NullParams, ProbeParams
from poolbench_prober.corpus import Passages
from poolbench_prober.crossval import OutOfFold, direction_context, out_of_fold
from poolbench_prober.design import Design
from poolbench_prober.metrics import (
    Resamples,
    auroc_measure,
    direction_measure,
    permuted_measure,
    selectivity_measure,
    within_pair_measure,
)
from poolbench_prober.solver import ProbeFit, fit_probes
from poolbench_prober.vectors import PooledVectors


@dataclass(frozen=True)
class CellResult:
    """What a cell yields.

    Attributes:
        measures: D1 figures, nulls included.
        directions: Direction by id, or the error that prevented it.
        scores: Rows of PROBE_SCORES.
    """

    measures: list[Measure]
    directions: dict[str, Direction | CellError]
    scores: list[dict[str, Any]]


@dataclass(frozen=True)
class _Cell:
    """The usable rows of a cell with the design restricted to them."""

    design: Design
    params: ProbeParams
    train: Passages
    vectors_nD: np.ndarray
    rows: np.ndarray
    fields: dict[str, Any]

    @property
    def folds(self) -> np.ndarray:
        return self.design.folds[self.rows]

    @property
    def labels(self) -> np.ndarray:
        return self.design.labelings.labels_nK[self.rows]

    @property
    def resamples(self) -> Resamples:
        return Resamples(self.design.train_weights[:, self.rows], self.train.groups)


def probe_cell(
    design: Design, train: PooledVectors, test: PooledVectors | None, params: ProbeParams
) -> CellResult:
    """All of D1 for one strategy at one layer.

    Args:
        design: Design of the concept.
        train: Vectors of the train passages.
        test: Vectors of the test passages; None leaves ``d1.auroc_test`` out.
        params: Parameters.

    Returns:
        Measures, directions and scores. A cell that cannot be probed has null measures and directions that
        share one status; one figure that cannot be computed leaves the others alone.
    """
    fields = _common_fields(design.train, train, params)
    try:
        rows = train.require_usable(design.train.labels)
        if design.error is not None:
            raise design.error
    except CellError as error:
        return _blank(error, design, params, fields)
    passages = design.train.take(rows)
    fields |= {"n": len(rows), "num_groups": len(np.unique(passages.groups))}
    cell = _Cell(design, params, passages, train.matrix_nD[rows], rows, fields)
    labelings = design.labelings
    found = out_of_fold(
        cell.vectors_nD,
        passages,
        cell.folds,
        cell.labels,
        labelings.c_K,
        tolerance=params.tolerance,
        seed=params.seed,
    )
    fit = fit_probes(cell.vectors_nD, cell.labels[:, :1], labelings.c_K[:1], params.tolerance)
    test_measures, test_scores = _test_split(cell, fit, test)
    return CellResult(
        measures=[*_train_measures(cell, found), *test_measures, *_domain_measures(cell)],
        directions=_directions(cell, fit),
        scores=[*_train_scores(cell, found), *test_scores],
    )


def null_cell(passages: Passages, vectors: PooledVectors, params: NullParams) -> list[Direction]:
    """The null directions of a concept: C1 of pair-permuted labels on the vectors of one strategy.

    Raises:
        CellError: Where the vectors cannot be used at all.
    """
    rows = vectors.require_usable(passages.labels)
    kept = passages.take(rows)
    return null_directions(
        vectors.matrix_nD[rows], kept.labels, kept.pairs_P2, num_nulls=params.num_nulls, seed=params.seed
    )


def _train_measures(cell: _Cell, found: OutOfFold) -> list[Measure]:
    labels, folds, resamples, fields = cell.train.labels, cell.folds, cell.resamples, cell.fields
    primary = found.probe_nK[:, 0]
    measures = [auroc_measure("d1.auroc", labels, primary, resamples, folds, **fields)]
    if cell.train.paired:
        measures.append(within_pair_measure(primary, cell.train.pairs_P2, resamples, **fields))
    measures += _reference_measures(cell, found)
    for c, column in cell.design.labelings.sensitivity.items():
        scores, params = found.probe_nK[:, column], {"C": c}
        measures.append(
            auroc_measure("d1.auroc_sensitivity", labels, scores, resamples, folds, params=params, **fields)
        )
    for name, projected in found.directions.items():
        measures.append(direction_measure(name, projected, labels, resamples, folds, **fields))
    return measures


def _reference_measures(cell: _Cell, found: OutOfFold) -> list[Measure]:
    """What D1 is held against: permuted labels, and tasks without meaning."""
    labelings = cell.design.labelings
    permuted, controls = list(labelings.permuted), [0, *labelings.controls.values()]
    labels_nK, scores_nK = cell.labels, found.probe_nK
    words = list(labelings.controls)
    return [
        permuted_measure(labels_nK[:, permuted], scores_nK[:, permuted], cell.folds, **cell.fields),
        selectivity_measure(
            labels_nK[:, controls], scores_nK[:, controls], words, cell.resamples, cell.folds, **cell.fields
        ),
    ]


def _test_split(
    cell: _Cell, fit: ProbeFit, test: PooledVectors | None
) -> tuple[list[Measure], list[dict[str, Any]]]:
    """Measure and scores of the probe fitted on all of train, on the test split."""
    passages = cell.design.test
    if test is None or passages is None:
        return [], []
    fields = _common_fields(passages, test, cell.params)
    try:
        rows = test.require_usable(passages.labels)
        if not fit.converged[0]:
            raise CellError(
                "not_converged", f"gradient ratio {fit.gradient_ratio[0]:.1e} above the tolerance"
            )
    except CellError as error:
        return [Measure.failed("d1.auroc_test", error, **fields)], []
    kept = passages.take(rows)
    scores = fit.scores(test.matrix_nD[rows])[:, 0]
    fields |= {"n": len(rows), "num_groups": len(np.unique(kept.groups))}
    resamples = Resamples(cell.design.test_weights[:, rows], kept.groups)
    measure = auroc_measure("d1.auroc_test", kept.labels, scores, resamples, **fields)
    return [measure], list(_score_rows(kept, "test", np.full(len(rows), -1), scores))


def _domain_measures(cell: _Cell) -> list[Measure]:
    """AUROC on each domain of a probe fitted on the others."""
    return [_held_out_domain(cell, domain) for domain in np.unique(cell.train.domains)]


def _held_out_domain(cell: _Cell, domain: str) -> Measure:
    held = np.flatnonzero(cell.train.domains == domain)
    groups = cell.train.groups
    fitted = np.flatnonzero(~np.isin(groups, groups[held]))
    labels = cell.train.labels
    fields = {**cell.fields, "params": {"domain": str(domain)}}
    fields |= {"n": len(held), "num_groups": len(np.unique(groups[held]))}
    fewest = min(np.bincount(labels[rows], minlength=2).min() for rows in (held, fitted))
    if fewest < cell.params.min_domain_class:
        reason = (
            f"{fewest} passages of a class in {domain} or outside it; {cell.params.min_domain_class} needed"
        )
        return Measure.null("d1.auroc_domain", "too_few", reason, **fields)
    c_K = cell.design.labelings.c_K[:1]
    fit = fit_probes(cell.vectors_nD[fitted], cell.labels[fitted, :1], c_K, cell.params.tolerance)
    scores = np.where(fit.converged[0], fit.scores(cell.vectors_nD[held])[:, 0], np.nan)
    return auroc_measure("d1.auroc_domain", labels[held], scores, cell.resamples.take(held), **fields)


def _directions(cell: _Cell, fit: ProbeFit) -> dict[str, Direction | CellError]:
    context = direction_context(cell.vectors_nD, cell.train, np.arange(len(cell.rows)), fit, cell.params.seed)
    return {name: _direction_or_error(name, context) for name in implemented_directions()}


def _direction_or_error(name: str, context: DirectionContext) -> Direction | CellError:
    try:
        return compute_direction(name, context)
    except CellError as error:
        return error


def _train_scores(cell: _Cell, found: OutOfFold) -> Iterator[dict[str, Any]]:
    return _score_rows(cell.train, "train", cell.folds, found.probe_nK[:, 0])


def _score_rows(
    passages: Passages, split: str, folds: np.ndarray, scores: np.ndarray
) -> Iterator[dict[str, Any]]:
    for row, passage_id in enumerate(passages.ids):
        yield {
            "passage_id": passage_id,
            "split": split,
            "fold": int(folds[row]),
            "label": int(passages.labels[row]),
            "group": str(passages.groups[row]),
            "score": None if np.isnan(scores[row]) else float(scores[row]),
        }


def _common_fields(passages: Passages, vectors: PooledVectors, params: ProbeParams) -> dict[str, Any]:
    num_groups = len(np.unique(passages.groups))
    return {
        "n": len(passages.ids),
        "num_groups": num_groups,
        "coverage": vectors.coverage,
        "seed": params.seed,
    }


def _blank(error: CellError, design: Design, params: ProbeParams, fields: dict[str, Any]) -> CellResult:
    """Every figure of the cell as a null with the status of ``error``."""
    names = ["d1.auroc", "d1.auroc_permuted", "d1.selectivity"]
    names += ["d1.within_pair"] if design.train.paired else []
    names += ["d1.auroc_test"] if design.test is not None else []
    measures = [Measure.failed(name, error, **fields) for name in names]
    for c in params.sensitivity_c:
        measures.append(Measure.failed("d1.auroc_sensitivity", error, params={"C": c}, **fields))
    directions = dict.fromkeys(implemented_directions(), error)
    for name in directions:
        measures.append(Measure.failed(f"d1.direction.{name}", error, direction=name, **fields))
    for domain in np.unique(design.train.domains):
        measures.append(Measure.failed("d1.auroc_domain", error, params={"domain": str(domain)}, **fields))
    return CellResult(measures, dict(directions), [])
