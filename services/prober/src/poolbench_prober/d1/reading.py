"""How the rows of a cell become the vectors of a probe: unchanged, or through a readout that is fitted in each fold.

A readout is fitted on the training rows of the next fit, and with the labels of the probe that uses it. A probe
of permuted labels on heads that were chosen with the concept's labels would check nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from poolbench.errors import CellError
from poolbench.readouts import READOUTS, FittedReadout, Training
from poolbench.statistics.folds import grouped_folds
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.solver.fits import fit_probes

#: Inner folds of a readout. With two, every training row is scored at the least cost, which grows with the cube of
#: the rows of a fit, and both halves treat all parts equally.
INNER_FOLDS = 2


@dataclass(frozen=True)
class FittedReader:
    """The vectors that some probes use."""

    columns: np.ndarray  # the probes [k]
    vectors: Callable[[np.ndarray], np.ndarray]  # from the matrix of any rows [m, P * D] to their vectors [m, D]
    details: Mapping[str, Any] = field(default_factory=dict)  # what the readout chose; empty without one


@dataclass(frozen=True)
class RowReader:
    """The reader that makes vectors of the rows of a cell."""

    readout: str | None = None  # id of a registered readout, None where the rows are vectors already
    num_parts: int = 1  # parts P in a row
    seed: int = 0
    c: float = 1.0  # inverse regularisation of the probes that parts are ranked by
    tolerance: float = 1e-6

    def views(
        self, matrix_nW: np.ndarray, passages: Passages, rows: np.ndarray, labels_nK: np.ndarray
    ) -> list[FittedReader]:
        """Fit views for all probes on some rows. Probes with equal labels share a view.

        Args:
            matrix_nW: All rows of the cell, of which only `rows` are read.
            passages: Groups and labels of all rows.
            labels_nK: Labels of each probe, all rows.

        Raises:
            CellError: The probe of the concept (the first) has no readout. Another probe without a readout has no
                view and therefore no scores.
        """
        if self.readout is None:
            return [FittedReader(np.arange(labels_nK.shape[1]), lambda matrix_mD: matrix_mD)]
        alike: dict[bytes, list[int]] = {}  # column numbers by content: equal labels share one readout
        for number, column in enumerate(np.ascontiguousarray(labels_nK.T)):
            alike.setdefault(column.tobytes(), []).append(number)
        columns_of = [np.array(numbers) for numbers in alike.values()]
        distinct_nK = labels_nK[np.ix_(rows, [columns[0] for columns in columns_of])]
        fitted = self._fit(matrix_nW[rows], passages.take(rows), distinct_nK)
        if isinstance(fitted[0], CellError):
            raise fitted[0]
        pairs = zip(columns_of, fitted, strict=True)
        return [self._view(columns, readout) for columns, readout in pairs if not isinstance(readout, CellError)]

    def _fit(self, matrix_nW: np.ndarray, passages: Passages, labels_nK: np.ndarray) -> list[FittedReadout | CellError]:
        assert self.readout is not None
        folds = grouped_folds(passages.groups, passages.labels, INNER_FOLDS, self.seed)

        def held_out_scores(vectors_nD: np.ndarray) -> np.ndarray:
            return probe_scores(vectors_nD, labels_nK, folds, self.c, self.tolerance)

        parts_nPD = self._parts(matrix_nW)
        return list(READOUTS.get(self.readout).fit(Training(parts_nPD, labels_nK, folds, held_out_scores)))

    def _view(self, columns: np.ndarray, readout: FittedReadout) -> FittedReader:
        return FittedReader(columns, lambda matrix_mW: readout.apply(self._parts(matrix_mW)), readout.details)

    def _parts(self, matrix_mW: np.ndarray) -> np.ndarray:
        return matrix_mW.reshape(len(matrix_mW), self.num_parts, -1)


def probe_scores(
    vectors_nD: np.ndarray, labels_nK: np.ndarray, folds: np.ndarray, c: float, tolerance: float
) -> np.ndarray:
    """Return the log-odds [n, K] of each row by probes fitted on the other folds, or NaN without convergence."""
    scores_nK = np.full(labels_nK.shape, np.nan)
    for fold in np.unique(folds):
        held = folds == fold
        two = np.flatnonzero((labels_nK[~held] != labels_nK[~held][0]).any(axis=0))  # a probe needs both classes
        if two.size == 0:
            continue
        fit = fit_probes(vectors_nD[~held], labels_nK[np.ix_(~held, two)], np.full(len(two), c), tolerance)
        scores_nK[np.ix_(held, two)] = np.where(fit.converged, fit.scores(vectors_nD[held]), np.nan)
    return scores_nK
