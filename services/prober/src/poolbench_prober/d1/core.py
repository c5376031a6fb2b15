"""D1 of one concept, strategy and layer."""

from typing import Any

import numpy as np

from poolbench.contracts.measures import Measure
from poolbench.directions import Direction, SparseAutoencoder, available_directions, null_directions
from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench.steps.prober import NullParams, ProbeParams
from poolbench_prober.d1.cell import CellResult, ProbedCell, chosen, common_fields, score_rows, sink_measures
from poolbench_prober.d1.crossval import Directions, OutOfFold, direction_or_error
from poolbench_prober.d1.design import Design
from poolbench_prober.d1.held_out import blank_seeds, domain_measures, seed_measures, test_split
from poolbench_prober.d1.linearity import blank_linearity, linearity_measures
from poolbench_prober.d1.metrics import (
    auroc_measure,
    direction_measure,
    permuted_measure,
    selectivity_measure,
    within_pair_measure,
)
from poolbench_prober.d1.published import published_cell
from poolbench_prober.d1.reading import FittedReader
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.solver.interface import ProbeFit


def probe_cell(
    design: Design,
    train: PooledVectors,
    test: PooledVectors | None,
    params: ProbeParams,
    sae: SparseAutoencoder | None = None,
) -> CellResult:
    """Compute all of D1 for one strategy at one layer.

    Args:
        test: Vectors of the test passages. If None, `d1.auroc_test` is left out.
        sae: Sparse autoencoder of the layer. If None, direction C5 is left out.

    Returns:
        Measures, directions and scores. If a cell cannot be probed, all its measures and directions are
        null with one status. A single figure that cannot be computed does not affect the others.
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
    cell = ProbedCell.of(design, train, rows, params, fields, sae)
    try:
        cell.require_classes()
        out_of_fold = cell.out_of_fold(cell.labels, cell.folds, directions=True)
        view, fit = cell.fit_concept(np.arange(len(rows)))
    except CellError as error:  # a class is missing, or the concept's readout cannot be fitted
        return _blank(error, design, params, cell.fields, sae)
    test_measures, test_scores = test_split(cell, view, fit, test)
    return CellResult(
        measures=[
            *_train_measures(cell, out_of_fold),
            *test_measures,
            *domain_measures(cell),
            *seed_measures(cell, out_of_fold),
            *linearity_measures(cell, out_of_fold.probe_nK[:, 0]),
            *sink_measures(train, cell.fields),
        ],
        directions=_directions(cell, view, fit),
        scores=[*score_rows(cell.train, "train", cell.folds, out_of_fold.probe_nK[:, 0]), *test_scores],
        readout=view.details,
    )


def direction_cell(passages: Passages, vectors: PooledVectors, params: ProbeParams) -> CellResult:
    """Return the directions that `probe_cell` finds, without measures and scores."""
    design = Design.build(passages, None, params.model_copy(update={"num_bootstrap": 0}))
    try:
        rows = vectors.require_usable(passages.labels)
        cell = ProbedCell.of(design, vectors, rows, params, {})
        view, fit = cell.fit_concept(np.arange(len(rows)))
    except CellError as error:
        return CellResult([], dict.fromkeys(available_directions(), error), [])
    return CellResult([], _directions(cell, view, fit), [], view.details)


def null_cell(passages: Passages, vectors: PooledVectors, params: NullParams) -> list[Direction]:
    """Compute the null directions of a concept. Raise CellError if the vectors cannot be used at all."""
    rows = vectors.require_usable(passages.labels)
    usable = passages.take(rows)
    if vectors.readout is not None:
        raise CellError(
            Status.FAILED, f"null directions need vectors without a readout, not parts for {vectors.readout}"
        )
    return null_directions(
        vectors.matrix_nW[rows], usable.labels, usable.pairs_P2, num_nulls=params.num_nulls, seed=params.seed
    )


def _train_measures(cell: ProbedCell, out_of_fold: OutOfFold) -> list[Measure]:
    labels, folds, resamples, fields = cell.train.labels, cell.folds, cell.resamples, cell.fields
    primary = out_of_fold.probe_nK[:, 0]
    ratio = float(out_of_fold.worst_ratio[0])
    left_out = len(cell.design.train.ids) - len(cell.rows)
    details = {
        **chosen(*out_of_fold.readouts),
        "gradient_ratio": ratio if np.isfinite(ratio) else None,
        "solver": out_of_fold.solver,
        **({"left_out": left_out} if left_out else {}),  # passages without a finite vector
    }
    measures = [auroc_measure("d1.auroc", labels, primary, resamples, folds, details=details, **fields)]
    if cell.train.paired:
        measures.append(within_pair_measure(primary, cell.train.pairs_P2, resamples, **fields, reason=cell.unpaired))
    labelings = cell.design.labelings
    permuted, controls = list(labelings.permuted), [0, *labelings.controls.values()]
    labels_nK, scores_nK = cell.labels, out_of_fold.probe_nK
    words = list(labelings.controls)
    measures += [
        permuted_measure(labels_nK[:, permuted], scores_nK[:, permuted], cell.folds, **cell.fields),
        selectivity_measure(
            labels_nK[:, controls], scores_nK[:, controls], words, cell.resamples, cell.folds, **cell.fields
        ),
    ]
    for c, column in labelings.sensitivity.items():
        scores, params = out_of_fold.probe_nK[:, column], {"C": c}
        measures.append(
            auroc_measure("d1.auroc_sensitivity", labels, scores, resamples, folds, params=params, **fields)
        )
    for name, projected in out_of_fold.directions.items():
        own_fields = {**fields, "params": cell.constructing.params(name)}
        measures.append(direction_measure(name, projected, labels, resamples, folds, **own_fields))
    return measures


def _directions(cell: ProbedCell, view: FittedReader, fit: ProbeFit) -> dict[str, Direction | CellError]:
    vectors_nD = view.vectors(cell.matrix_nW)
    context = cell.constructing.context(vectors_nD, cell.train, np.arange(len(cell.rows)), fit)
    return {name: direction_or_error(name, context) for name in cell.constructing.ids}


def _blank(
    error: CellError, design: Design, params: ProbeParams, fields: dict[str, Any], sae: SparseAutoencoder | None
) -> CellResult:
    """Return every figure of the cell as a null with the status of `error`."""
    constructing = Directions(params.seed, sae, params.sae_features)
    names = ["d1.auroc", "d1.auroc_permuted", "d1.selectivity"]
    names += ["d1.within_pair"] if design.train.paired else []
    names += ["d1.auroc_test"] if design.test is not None else []
    measures = [Measure.failed(name, error, **fields) for name in names]
    for c in params.sensitivity_c:
        measures.append(Measure.failed("d1.auroc_sensitivity", error, params={"C": c}, **fields))
    directions: dict[str, Direction | CellError] = dict.fromkeys(constructing.ids, error)
    for name in directions:
        own_fields = {**fields, "params": constructing.params(name)}
        measures.append(Measure.failed(f"d1.direction.{name}", error, direction=name, **own_fields))
    for domain in np.unique(design.train.domains):
        measures.append(Measure.failed("d1.auroc_domain", error, params={"domain": str(domain)}, **fields))
    measures += [*blank_seeds(error, params, fields), *blank_linearity(error, params, fields)]
    return CellResult(measures, directions, [])
