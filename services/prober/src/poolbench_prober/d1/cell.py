"""One (concept, strategy, layer) while D1 is computed, and what comes out of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from poolbench.contracts.measures import Measure
from poolbench.directions import Direction, SparseAutoencoder
from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench.steps.prober import ProbeParams
from poolbench_prober.d1.crossval import Directions, OutOfFold, out_of_fold
from poolbench_prober.d1.design import Design
from poolbench_prober.d1.metrics import Resamples
from poolbench_prober.d1.reading import FittedReader, RowReader
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.solver.fits import fit_probes
from poolbench_prober.solver.interface import ProbeFit


@dataclass(frozen=True)
class CellResult:
    """The results of a cell.

    Attributes:
        directions: Direction by id, or the error that prevented it.
        readout: Settings that the readout behind the directions chose on all train rows. Empty without a readout.
    """

    measures: list[Measure]
    directions: dict[str, Direction | CellError]
    scores: list[dict[str, Any]]
    readout: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ProbedCell:
    """The usable rows of a cell, with the design restricted to them."""

    design: Design
    params: ProbeParams
    train: Passages  # passages of the usable rows [n]
    matrix_nW: np.ndarray  # their vectors, or the parts that `reading` combines into vectors
    reading: RowReader
    rows: np.ndarray  # their row numbers in the train split
    fields: dict[str, Any]  # fields that all measures share
    constructing: Directions

    @classmethod
    def of(
        cls,
        design: Design,
        vectors: PooledVectors,
        rows: np.ndarray,
        params: ProbeParams,
        fields: dict[str, Any],
        sae: SparseAutoencoder | None = None,
    ) -> Self:
        """Return the cell of the usable rows."""
        constructing = Directions(params.seed, sae, params.sae_features)
        train = design.train.take(rows)
        counts = {"n": len(rows), "num_groups": len(np.unique(train.groups))}
        reading = RowReader(vectors.readout, vectors.num_parts, params.seed, params.primary_c, params.tolerance)
        return cls(design, params, train, vectors.matrix_nW[rows], reading, rows, fields | counts, constructing)

    @property
    def folds(self) -> np.ndarray:
        """Return fold of each row [n]."""
        return self.design.folds[self.rows]

    def require_classes(self) -> None:
        """Raise CellError, `one_class` or `too_few`, if a class is lost with passages that have no finite vector."""
        labels, folds = self.train.labels, self.folds
        if len(np.unique(labels)) < 2:
            raise CellError(Status.ONE_CLASS, f"all {len(labels)} passages with a finite vector have one label")
        for fold in np.unique(folds):
            if len(np.unique(labels[folds != fold])) < 2:
                raise CellError(Status.TOO_FEW, f"outside fold {fold} all passages with a finite vector have one label")

    @property
    def labels(self) -> np.ndarray:
        """Return the labels of each probe [n, K], where column 0 is the concept."""
        return self.design.labelings.labels_nK[self.rows]

    @property
    def unpaired(self) -> str | None:
        """Return a note on the passages of a paired concept without a partner of the other class, or None."""
        left = len(self.rows) - self.train.pairs_P2.size
        if not self.train.paired or left == 0:
            return None
        return f"{left} of {len(self.rows)} passages have no partner of the other class and are left out"

    @property
    def resamples(self) -> Resamples:
        """Return bootstrap over the groups of the rows."""
        return Resamples(self.design.train_weights[:, self.rows], self.train.groups)

    def out_of_fold(
        self, labels_nK: np.ndarray, folds: np.ndarray, rows: np.ndarray | None = None, directions: bool = False
    ) -> OutOfFold:
        """Return out-of-fold scores of the first K probes, on all rows or on `rows`, with or without directions."""
        matrix_nW, train = self.matrix_nW, self.train
        if rows is not None:
            matrix_nW, train, labels_nK = matrix_nW[rows], train.take(rows), labels_nK[rows]
        c_K = self.design.labelings.c_K[: labels_nK.shape[1]]
        constructing = self.constructing if directions else None
        tolerance, reading = self.params.tolerance, self.reading
        return out_of_fold(
            matrix_nW, train, folds, labels_nK, c_K, tolerance=tolerance, reading=reading, constructing=constructing
        )

    def fit_concept(self, fitted: np.ndarray) -> tuple[FittedReader, ProbeFit]:
        """Fit the primary probe of the concept on rows `fitted`. Return reader and probe, or raise CellError."""
        (view,) = self.reading.views(self.matrix_nW, self.train, fitted, self.labels[:, :1])
        vectors_nD = view.vectors(self.matrix_nW[fitted])
        return view, fit_probes(
            vectors_nD, self.labels[fitted, :1], self.design.labelings.c_K[:1], self.params.tolerance
        )


def score_rows(passages: Passages, split: str, folds: np.ndarray, scores: np.ndarray) -> Iterator[dict[str, Any]]:
    """Yield rows of PROBE_SCORES. If a probe did not converge, its score is null."""
    for row, passage_id in enumerate(passages.ids):
        yield {
            "passage_id": passage_id,
            "split": split,
            "fold": int(folds[row]),
            "label": int(passages.labels[row]),
            "group": str(passages.groups[row]),
            "score": None if np.isnan(scores[row]) else float(scores[row]),
        }


def common_fields(passages: Passages, vectors: PooledVectors, params: ProbeParams) -> dict[str, Any]:
    """Return the fields of every measure of one split."""
    counts = {"n": len(passages.ids), "num_groups": len(np.unique(passages.groups))}
    return counts | {"coverage": vectors.coverage, "seed": params.seed}


def sink_measures(vectors: PooledVectors, fields: Mapping[str, Any]) -> list[Measure]:
    """Return the share of passages with attention sinks, and the number of sinks left out, if both are known."""
    if vectors.sinks_n2 is None:
        return []
    found_n, left_out_n = vectors.sinks_n2.T
    return [
        Measure.of("sinks.passages", float((found_n > 0).mean()), **fields),
        Measure.of("sinks.left_out", float(left_out_n.sum()), **fields),
    ]


def chosen(*readouts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the choices of the readout in each fold, as details of a measure. Empty without readouts."""
    return {"readouts": [dict(readout) for readout in readouts]} if any(readouts) else {}
