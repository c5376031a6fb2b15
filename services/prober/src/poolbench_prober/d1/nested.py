"""D1 at a layer that is chosen inside the training folds, so that selection and measurement use different data."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from poolbench.contracts.measures import Measure
from poolbench.errors import CellError
from poolbench.statistics.auroc import auroc
from poolbench.statistics.folds import grouped_folds
from poolbench.statuses import Status
from poolbench.steps.prober import ProbeParams
from poolbench_prober.d1.cell import ProbedCell, common_fields
from poolbench_prober.d1.design import Design
from poolbench_prober.d1.held_out import test_split
from poolbench_prober.d1.metrics import auroc_measure
from poolbench_prober.inputs.vectors import PooledVectors

#: Folds inside the training rows of an outer fold.
INNER_FOLDS = 4
METRICS = ("d1.auroc_nested", "d1.auroc_test_nested")

#: Vectors of the train and the test passages, by layer.
Layers = Mapping[int, tuple[PooledVectors, PooledVectors]]


def nested_measures(design: Design, layers: Layers, params: ProbeParams) -> list[Measure]:
    """Return `d1.auroc_nested` and `d1.auroc_test_nested` of one strategy.

    Each outer fold uses the layer with the best inner out-of-fold AUROC. The lowest layer wins ties. For the test
    split, the layer is chosen on the whole train split. A layer that cannot be probed is never chosen.
    """
    first = next(iter(layers.values()))[0]
    fields = {**common_fields(design.train, first, params), "params": {"layers": sorted(layers)}}
    try:
        if design.error is not None:
            raise design.error
        cells = _cells(design, layers, params, fields)
        next(iter(cells.values())).require_classes()
    except CellError as error:
        return [Measure.failed(name, error, **fields) for name in METRICS]
    measures = []
    for name, make in zip(METRICS, (lambda: _train(cells), lambda: _test(cells, layers)), strict=True):
        try:
            measures.append(make())
        except CellError as error:
            measures.append(Measure.failed(name, error, **fields))
    return measures


def _cells(design: Design, layers: Layers, params: ProbeParams, fields: dict[str, Any]) -> dict[int, ProbedCell]:
    """Return a cell for each layer that can be probed, all with the same rows."""
    rows: dict[int, np.ndarray] = {}
    errors: list[CellError] = []
    for layer, (train, _) in sorted(layers.items()):
        try:
            rows[layer] = train.require_usable(design.train.labels)
        except CellError as error:
            errors.append(error)
    if not rows:
        raise errors[0]
    common = np.array(
        sorted(set.intersection(*(set(usable_rows.tolist()) for usable_rows in rows.values()))), dtype=int
    )
    if len(common) == 0:
        raise CellError(Status.TOO_FEW, "no passage has a finite vector at every layer")
    return {layer: ProbedCell.of(design, layers[layer][0], common, params, fields) for layer in rows}


def _train(cells: Mapping[int, ProbedCell]) -> Measure:
    any_cell = next(iter(cells.values()))
    folds, train = any_cell.folds, any_cell.train
    scores, best_layers = np.full(len(folds), np.nan), []
    for fold in np.unique(folds):
        fitted, held = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        fold_train = train.take(fitted)
        inner = grouped_folds(fold_train.groups, fold_train.labels, INNER_FOLDS, any_cell.params.seed)
        layer = best_layer(cells, fitted, inner)
        view, fit = cells[layer].fit_concept(fitted)
        if fit.converged[0]:
            scores[held] = fit.scores(view.vectors(cells[layer].matrix_nW[held]))[:, 0]
        best_layers.append(layer)
    fields = {**any_cell.fields, "details": {"chosen": best_layers}}
    return auroc_measure("d1.auroc_nested", train.labels, scores, any_cell.resamples, folds, **fields)


def _test(cells: Mapping[int, ProbedCell], layers: Layers) -> Measure:
    any_cell = next(iter(cells.values()))
    every = np.arange(len(any_cell.rows))
    layer = best_layer(cells, every, any_cell.folds)
    view, fit = cells[layer].fit_concept(every)
    (measure,), _ = test_split(cells[layer], view, fit, layers[layer][1])
    return measure.with_fields(
        metric="d1.auroc_test_nested", params=any_cell.fields["params"], details={"chosen": [layer]}
    )


def best_layer(cells: Mapping[int, ProbedCell], rows: np.ndarray, folds: np.ndarray) -> int:
    """Return the layer with the highest out-of-fold AUROC on some rows.

    Raise CellError `not_converged` if no layer has an AUROC.
    """
    auroc_by_layer = {layer: _score(cell, rows, folds) for layer, cell in cells.items()}
    if all(np.isnan(score) for score in auroc_by_layer.values()):
        raise CellError(Status.NOT_CONVERGED, "no layer has a converged probe in every inner fold")
    return max(sorted(auroc_by_layer), key=lambda layer: np.nan_to_num(auroc_by_layer[layer], nan=-1.0))


def _score(cell: ProbedCell, rows: np.ndarray, folds: np.ndarray) -> float:
    scores = cell.out_of_fold(cell.labels[:, :1], folds, rows).probe_nK[:, 0]
    return float("nan") if np.isnan(scores).any() else auroc(cell.train.labels[rows], scores, folds)
