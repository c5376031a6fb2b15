"""Out-of-fold scores of every probe and every direction."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from poolbench.directions import Direction, DirectionContext, SparseAutoencoder, available_directions, compute_direction
from poolbench.errors import CellError
from poolbench_prober.d1.reading import RowReader
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.solver.fits import fit_folds
from poolbench_prober.solver.interface import ProbeFit

AS_IT_IS = RowReader()


@dataclass(frozen=True)
class OutOfFold:
    """Scores of passages by models that were fitted without their group."""

    probe_nK: np.ndarray  # log-odds of each probe; a column is NaN where a fold did not converge
    directions: dict[str, np.ndarray | CellError]  # projections [n] by direction id, or the error that prevented them
    worst_ratio: np.ndarray  # largest gradient ratio of each probe over the folds [K]
    readouts: tuple[Mapping[str, Any], ...] = ()  # what the concept's readout chose in each fold; empty without one
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
    constructing: "Directions | None" = None,
) -> OutOfFold:
    """For each fold, fit all probes and directions on the other folds and score the rows of the fold.

    Args:
        matrix_nW: Rows of the passages: vectors, or parts that `reading` turns into vectors.
        passages: Labels and pairs of the rows in `matrix_nW`.
        folds: Fold of each row [n].
        labels_nK: Labels of each probe, where column 0 is the concept.
        reading: Converter of rows to vectors, fitted on the training rows of each fold.
        constructing: Method of fitting directions beside the probes. If None, directions are left out.

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
            fold_fits = [] if alike else fit_folds(vectors_nD, labels_nK[:, columns], c_K[columns], [fitted], tolerance)
            fit = together[number] if alike else fold_fits[0]
            worst[columns] = np.maximum(worst[columns], fit.gradient_ratio)
            scores[np.ix_(held, columns)] = np.where(fit.converged, fit.scores(vectors_nD[held]), np.nan)
            if columns[0] == 0 and constructing:
                context = constructing.context(vectors_nD, passages, fitted, fit)
                for name, projected in directions.items():
                    if isinstance(projected, CellError):
                        continue
                    direction = direction_or_error(name, context)
                    if isinstance(direction, CellError):
                        directions[name] = direction
                    else:
                        projected[held] = vectors_nD[held] @ direction.vector
    scores[:, np.isnan(scores).any(axis=0)] = np.nan
    return OutOfFold(scores, directions, worst, tuple(readouts), fit.solver)


class Directions:
    """Fit directions on some rows of a cell.

    Args:
        num_features: Number of autoencoder features that C5 uses.
    """

    def __init__(self, seed: int, sae: SparseAutoencoder | None, num_features: int) -> None:
        self.seed, self.sae, self.num_features = seed, sae, num_features
        self.ids = available_directions(() if sae is None else ("sae",))
        self._encoded: tuple[np.ndarray, np.ndarray | None] | None = None

    def context(self, vectors_nD: np.ndarray, passages: Passages, rows: np.ndarray, fit: ProbeFit) -> DirectionContext:
        """Return the inputs for constructing directions on `rows`.

        C3 uses the weights of the concept's own probe, column 0 of `fit`. They are None if it did not converge.
        """
        subset = passages.take(rows)
        weights = fit.weights_DK[:, 0] if fit.converged[0] else None
        features_nF = self._features(vectors_nD)
        return DirectionContext(
            vectors_nD[rows],
            subset.labels,
            subset.pairs_P2,
            self.seed,
            weights,
            sae=self.sae,
            features_nF=None if features_nF is None else features_nF[rows],
            num_features=self.num_features,
        )

    def params(self, direction_id: str) -> dict[str, Any]:
        """Return the settings that distinguish the rows of a direction."""
        if direction_id != "C5" or self.sae is None:
            return {}
        return {"sae": self.sae.id, "num_features": self.num_features}

    def _features(self, vectors_nD: np.ndarray) -> np.ndarray | None:
        """Return the features of all rows; the last result is cached because every fold needs it."""
        if self.sae is None:
            return None
        if self._encoded is None or self._encoded[0] is not vectors_nD:
            fits = vectors_nD.shape[1] == self.sae.width  # if not, C5 reports it
            self._encoded = (vectors_nD, self.sae.encode(vectors_nD) if fits else None)
        return self._encoded[1]


def direction_or_error(name: str, context: DirectionContext) -> Direction | CellError:
    """Compute a direction, or return the CellError that prevents this."""
    try:
        return compute_direction(name, context)
    except CellError as error:
        return error
