"""D1 of one (concept, strategy, layer): vectors and design in; measures, directions and scores out."""

from __future__ import annotations

from typing import Any

import numpy as np

from poolbench.directions import Direction, SparseAutoencoder, available_directions, null_directions
from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench.steps.prober import NullParams, ProbeParams
from poolbench.suites import Measure
from poolbench_prober.d1.cell import Cell, CellResult, chosen, common_fields, score_rows
from poolbench_prober.d1.construct import Directions, direction_or_error
from poolbench_prober.d1.crossval import OutOfFold, out_of_fold
from poolbench_prober.d1.design import Design
from poolbench_prober.d1.held_out import domain_measures, test_split
from poolbench_prober.d1.metrics import (
    auroc_measure,
    direction_measure,
    permuted_measure,
    selectivity_measure,
    within_pair_measure,
)
from poolbench_prober.d1.published import published_cell
from poolbench_prober.d1.reading import View
from poolbench_prober.d1.seeds import blank_seeds, seed_measures
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.solver import ProbeFit


def probe_cell(
    design: Design,
    train: PooledVectors,
    test: PooledVectors | None,
    params: ProbeParams,
    sae: SparseAutoencoder | None = None,
) -> CellResult:
    """All of D1 for one strategy at one layer.

    Args:
        design: Design of the concept.
        train: Vectors of the train passages.
        test: Vectors of the test passages; None leaves ``d1.auroc_test`` out.
        params: Parameters.
        sae: Sparse autoencoder of the layer; None leaves direction C5 out.

    Returns:
        Measures, directions and scores. A cell that cannot be probed has null measures and directions that
        share one status; one figure that cannot be computed leaves the others alone.
    """
    if params.protocol == "published":
        return published_cell(design.train, train, params)
    fields = common_fields(design.train, train, params)
    try:
        rows = train.require_usable(design.train.labels)
        if design.error is not None:
            raise design.error
    except CellError as error:
        return _blank(error, design, params, fields, sae)
    cell = Cell.of(design, train, rows, params, fields, sae)
    try:
        cell.require_classes()
        found = _out_of_fold(cell)
        view, fit = cell.fit_concept(np.arange(len(rows)))
    except CellError as error:  # a class is missing, or the concept's readout cannot be fitted
        return _blank(error, design, params, cell.fields, sae)
    test_measures, test_scores = test_split(cell, view, fit, test)
    return CellResult(
        measures=[*_train_measures(cell, found), *test_measures, *domain_measures(cell), *seed_measures(cell, found)],
        directions=_directions(cell, view, fit),
        scores=[*score_rows(cell.train, "train", cell.folds, found.probe_nK[:, 0]), *test_scores],
        readout=view.details,
    )


def direction_cell(passages: Passages, vectors: PooledVectors, params: ProbeParams) -> CellResult:
    """The directions alone, the same as ``probe_cell`` finds; neither measures nor scores."""
    design = Design.build(passages, None, params.model_copy(update={"num_bootstrap": 0}))
    try:
        rows = vectors.require_usable(passages.labels)
        cell = Cell.of(design, vectors, rows, params, {})
        view, fit = cell.fit_concept(np.arange(len(rows)))
    except CellError as error:
        return CellResult([], dict.fromkeys(available_directions(), error), [])
    return CellResult([], _directions(cell, view, fit), [], view.details)


def null_cell(passages: Passages, vectors: PooledVectors, params: NullParams) -> list[Direction]:
    """The null directions of a concept: C1 of pair-permuted labels on the vectors of one strategy.

    Raises:
        CellError: Where the vectors cannot be used at all.
    """
    rows = vectors.require_usable(passages.labels)
    kept = passages.take(rows)
    if vectors.readout is not None:
        raise CellError(
            Status.FAILED, f"null directions need vectors without a readout, not parts for {vectors.readout}"
        )
    return null_directions(
        vectors.matrix_nW[rows], kept.labels, kept.pairs_P2, num_nulls=params.num_nulls, seed=params.seed
    )


def _out_of_fold(cell: Cell) -> OutOfFold:
    return out_of_fold(
        cell.matrix_nW,
        cell.train,
        cell.folds,
        cell.labels,
        cell.design.labelings.c_K,
        tolerance=cell.params.tolerance,
        reading=cell.reading,
        constructing=cell.constructing,
    )


def _train_measures(cell: Cell, found: OutOfFold) -> list[Measure]:
    labels, folds, resamples, fields = cell.train.labels, cell.folds, cell.resamples, cell.fields
    primary = found.probe_nK[:, 0]
    details = {**chosen(*found.readouts), **_how(cell, found)}
    measures = [auroc_measure("d1.auroc", labels, primary, resamples, folds, details=details, **fields)]
    if cell.train.paired:
        measures.append(within_pair_measure(primary, cell.train.pairs_P2, resamples, **fields, reason=cell.unpaired))
    measures += _reference_measures(cell, found)
    for c, column in cell.design.labelings.sensitivity.items():
        scores, params = found.probe_nK[:, column], {"C": c}
        measures.append(
            auroc_measure("d1.auroc_sensitivity", labels, scores, resamples, folds, params=params, **fields)
        )
    for name, projected in found.directions.items():
        told = {**fields, "params": cell.constructing.params(name)}
        measures.append(direction_measure(name, projected, labels, resamples, folds, **told))
    return measures


def _how(cell: Cell, found: OutOfFold) -> dict[str, Any]:
    """How the primary probes converged, under which solver, and how many passages lacked a finite vector."""
    ratio = float(found.worst_ratio[0])
    left_out = len(cell.design.train.ids) - len(cell.rows)
    how = {"gradient_ratio": ratio if np.isfinite(ratio) else None, "solver": found.solver}
    return how | ({"left_out": left_out} if left_out else {})


def _reference_measures(cell: Cell, found: OutOfFold) -> list[Measure]:
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


def _directions(cell: Cell, view: View, fit: ProbeFit) -> dict[str, Direction | CellError]:
    vectors_nD = view.vectors(cell.matrix_nW)
    context = cell.constructing.context(vectors_nD, cell.train, np.arange(len(cell.rows)), fit)
    return {name: direction_or_error(name, context) for name in cell.constructing.ids}


def _blank(
    error: CellError, design: Design, params: ProbeParams, fields: dict[str, Any], sae: SparseAutoencoder | None
) -> CellResult:
    """Every figure of the cell as a null with the status of ``error``."""
    constructing = Directions(params.seed, sae, params.sae_features)
    names = ["d1.auroc", "d1.auroc_permuted", "d1.selectivity"]
    names += ["d1.within_pair"] if design.train.paired else []
    names += ["d1.auroc_test"] if design.test is not None else []
    measures = [Measure.failed(name, error, **fields) for name in names]
    for c in params.sensitivity_c:
        measures.append(Measure.failed("d1.auroc_sensitivity", error, params={"C": c}, **fields))
    directions: dict[str, Direction | CellError] = dict.fromkeys(constructing.ids, error)
    for name in directions:
        told = {**fields, "params": constructing.params(name)}
        measures.append(Measure.failed(f"d1.direction.{name}", error, direction=name, **told))
    for domain in np.unique(design.train.domains):
        measures.append(Measure.failed("d1.auroc_domain", error, params={"domain": str(domain)}, **fields))
    return CellResult([*measures, *blank_seeds(error, params, fields)], directions, [])
