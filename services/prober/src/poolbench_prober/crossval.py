"""Out-of-fold scores of every probe and every direction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from poolbench.directions import DirectionContext, compute_direction, implemented_directions
from poolbench.errors import CellError
from poolbench_prober.corpus import Passages
from poolbench_prober.solver import ProbeFit, fit_probes


@dataclass(frozen=True)
class OutOfFold:
    """Scores of passages by models that never saw their group.

    Attributes:
        probe_nK: Log-odds of each probe; a column is NaN where a fold did not converge.
        directions: Projections [n] by direction id, or the error that prevented them.
        worst_ratio: Largest gradient ratio of each probe over the folds [K].
    """

    probe_nK: np.ndarray
    directions: dict[str, np.ndarray | CellError]
    worst_ratio: np.ndarray


def out_of_fold(
    vectors_nD: np.ndarray,
    passages: Passages,
    folds: np.ndarray,
    labels_nK: np.ndarray,
    c_K: np.ndarray,
    *,
    tolerance: float,
    seed: int,
) -> OutOfFold:
    """Fits every probe and direction on all folds but one, and scores that one, for each fold.

    Args:
        vectors_nD: Vectors of the passages.
        passages: Labels and pairs of the same rows.
        folds: Fold of each row [n].
        labels_nK: Labels of each probe; column 0 is the concept.
        c_K: Inverse regularisation of each probe.
        tolerance: Of the probes.
        seed: Of directions that draw.
    """
    scores = np.full(labels_nK.shape, np.nan)
    worst = np.zeros(len(c_K))
    directions: dict[str, np.ndarray | CellError] = {
        name: np.full(len(folds), np.nan) for name in implemented_directions()
    }
    for fold in np.unique(folds):
        fitted, held = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        fit = fit_probes(vectors_nD[fitted], labels_nK[fitted], c_K, tolerance)
        worst = np.maximum(worst, fit.gradient_ratio)
        scores[held] = np.where(fit.converged, fit.scores(vectors_nD[held]), np.nan)
        context = direction_context(vectors_nD, passages, fitted, fit, seed)
        for name, projected in directions.items():
            if isinstance(projected, np.ndarray):
                directions[name] = _project(name, context, vectors_nD, held, projected)
    scores[:, np.isnan(scores).any(axis=0)] = np.nan
    return OutOfFold(scores, directions, worst)


def direction_context(
    vectors_nD: np.ndarray, passages: Passages, rows: np.ndarray, fit: ProbeFit, seed: int
) -> DirectionContext:
    """The context of the directions fitted on ``rows``; probe 0 gives C3."""
    subset = passages.take(rows)
    weights = fit.weights_DK[:, 0] if fit.converged[0] else None
    return DirectionContext(vectors_nD[rows], subset.labels, subset.pairs_P2, seed, weights)


def _project(
    name: str, context: DirectionContext, vectors_nD: np.ndarray, held: np.ndarray, projected: np.ndarray
) -> np.ndarray | CellError:
    try:
        projected[held] = vectors_nD[held] @ compute_direction(name, context).vector
    except CellError as error:
        return error
    return projected
