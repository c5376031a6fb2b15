"""Out-of-fold scores of every probe and every direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from poolbench.directions import DirectionContext, compute_direction
from poolbench.errors import CellError
from poolbench_prober.d1.construct import Directions
from poolbench_prober.d1.reading import RowReader
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.solver import fit_folds

AS_IT_IS = RowReader()


@dataclass(frozen=True)
class OutOfFold:
    """Scores of passages by models that were fitted without their group.

    Attributes:
        probe_nK: Log-odds of each probe; a column is NaN where a fold did not converge.
        directions: Projections [n] by direction id, or the error that prevented them.
        worst_ratio: Largest gradient ratio of each probe over the folds [K].
        readouts: What the concept's readout chose in each fold; empty mappings without one.
    """

    probe_nK: np.ndarray
    directions: dict[str, np.ndarray | CellError]
    worst_ratio: np.ndarray
    readouts: tuple[Mapping[str, Any], ...] = ()
    solver: str = ""


def out_of_fold(
    matrix_nW: np.ndarray,
    passages: Passages,
    folds: np.ndarray,
    labels_nK: np.ndarray,
    c_K: np.ndarray,
    *,
    tolerance: float,
    reading: RowReader = AS_IT_IS,
    constructing: Directions | None = None,
) -> OutOfFold:
    """Fit every probe and direction on all folds but one, and score that one, for each fold.

    Args:
        matrix_nW: Rows of the passages: vectors, or parts that `reading` turns into vectors.
        passages: Labels and pairs of the same rows.
        folds: Fold of each row [n].
        labels_nK: Labels of each probe; column 0 is the concept.
        reading: How rows become vectors; fitted on the training rows of each fold.
        constructing: How directions are fitted beside the probes; None leaves them out.

    Raises:
        CellError: The concept's readout cannot be fitted in a fold.
    """
    scores = np.full(labels_nK.shape, np.nan)
    worst = np.zeros(len(c_K))
    ids = constructing.ids if constructing else ()
    directions: dict[str, np.ndarray | CellError] = {name: np.full(len(folds), np.nan) for name in ids}
    readouts: list[Mapping[str, Any]] = []
    training = [np.flatnonzero(folds != fold) for fold in np.unique(folds)]
    alike = reading.readout is None  # all folds see the same vectors, so one call of the solver fits them all
    together = fit_folds(matrix_nW, labels_nK, c_K, training, tolerance) if alike else []
    for number, fold in enumerate(np.unique(folds)):
        fitted, held = training[number], np.flatnonzero(folds == fold)
        views = reading.views(matrix_nW, passages, fitted, labels_nK)
        readouts.append(views[0].details)
        for view in views:
            vectors_nD, columns = view.vectors(matrix_nW), view.columns
            own = [] if alike else fit_folds(vectors_nD, labels_nK[:, columns], c_K[columns], [fitted], tolerance)
            fit = together[number] if alike else own[0]
            worst[columns] = np.maximum(worst[columns], fit.gradient_ratio)
            scores[np.ix_(held, columns)] = np.where(fit.converged, fit.scores(vectors_nD[held]), np.nan)
            if columns[0] == 0 and constructing:
                context = constructing.context(vectors_nD, passages, fitted, fit)
                for name, projected in directions.items():
                    if isinstance(projected, np.ndarray):
                        directions[name] = _project(name, context, vectors_nD, held, projected)
    scores[:, np.isnan(scores).any(axis=0)] = np.nan
    return OutOfFold(scores, directions, worst, tuple(readouts), fit.solver)


def _project(
    name: str, context: DirectionContext, vectors_nD: np.ndarray, held: np.ndarray, projected: np.ndarray
) -> np.ndarray | CellError:
    try:
        projected[held] = vectors_nD[held] @ compute_direction(name, context).vector
    except CellError as error:
        return error
    return projected
