"""One (concept, strategy, layer) while D1 is computed, and what comes out of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from poolbench.directions import Direction, SparseAutoencoder
from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench.steps.prober import ProbeParams
from poolbench.suites import Measure
from poolbench_prober.d1.construct import Directions
from poolbench_prober.d1.design import Design
from poolbench_prober.d1.metrics import Resamples
from poolbench_prober.d1.reading import Reading, View
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.solver import ProbeFit, fit_probes


@dataclass(frozen=True)
class CellResult:
    """What a cell yields.

    Attributes:
        measures: D1 figures, nulls included.
        directions: Direction by id, or the error that prevented it.
        scores: Rows of PROBE_SCORES.
        readout: What the readout behind the directions chose, from all train rows; empty without one.
    """

    measures: list[Measure]
    directions: dict[str, Direction | CellError]
    scores: list[dict[str, Any]]
    readout: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """The usable rows of a cell, with the design restricted to them.

    Attributes:
        design: Design of the concept.
        params: Parameters.
        train: Passages of the usable rows [n].
        matrix_nW: Their rows: vectors, or parts that ``reading`` makes vectors of.
        reading: How rows become vectors.
        rows: Their row numbers in the train split.
        fields: Fields that all measures share.
        constructing: How directions are fitted.
    """

    design: Design
    params: ProbeParams
    train: Passages
    matrix_nW: np.ndarray
    reading: Reading
    rows: np.ndarray
    fields: dict[str, Any]
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
        """The cell of the usable rows."""
        constructing = Directions(params.seed, sae, params.sae_features)
        train = design.train.take(rows)
        counts = {"n": len(rows), "num_groups": len(np.unique(train.groups))}
        reading = Reading(vectors.readout, vectors.num_parts, params.seed, params.primary_c, params.tolerance)
        return cls(design, params, train, vectors.matrix_nW[rows], reading, rows, fields | counts, constructing)

    @property
    def folds(self) -> np.ndarray:
        """Fold of each row [n]."""
        return self.design.folds[self.rows]

    def require_classes(self) -> None:
        """Passages without a finite vector may have taken a class with them.

        Raises:
            CellError: ``one_class``; ``too_few`` where the passages outside some fold are of one class.
        """
        labels, folds = self.train.labels, self.folds
        if len(np.unique(labels)) < 2:
            raise CellError(Status.ONE_CLASS, f"all {len(labels)} passages with a finite vector have one label")
        for fold in np.unique(folds):
            if len(np.unique(labels[folds != fold])) < 2:
                raise CellError(Status.TOO_FEW, f"outside fold {fold} all passages with a finite vector have one label")

    @property
    def labels(self) -> np.ndarray:
        """Labels of each probe [n, K]; column 0 is the concept."""
        return self.design.labelings.labels_nK[self.rows]

    @property
    def unpaired(self) -> str | None:
        """A word on passages of a paired concept without a partner of the other class; None where there is none."""
        left = len(self.rows) - self.train.pairs_P2.size
        if not self.train.paired or left == 0:
            return None
        return f"{left} of {len(self.rows)} passages have no partner of the other class and are left out"

    @property
    def resamples(self) -> Resamples:
        """Bootstrap over the groups of the rows."""
        return Resamples(self.design.train_weights[:, self.rows], self.train.groups)

    def fit_concept(self, fitted: np.ndarray) -> tuple[View, ProbeFit]:
        """The concept's primary probe on the rows ``fitted``, and the view of the vectors that it was fitted in.

        Raises:
            CellError: Where the readout cannot be fitted on these rows.
        """
        (view,) = self.reading.views(self.matrix_nW, self.train, fitted, self.labels[:, :1])
        vectors_nD = view.vectors(self.matrix_nW[fitted])
        return view, fit_probes(
            vectors_nD, self.labels[fitted, :1], self.design.labelings.c_K[:1], self.params.tolerance
        )


def score_rows(passages: Passages, split: str, folds: np.ndarray, scores: np.ndarray) -> Iterator[dict[str, Any]]:
    """Rows of PROBE_SCORES; a score of a probe that did not converge is null."""
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
    """Fields of every measure of one split."""
    num_groups = len(np.unique(passages.groups))
    return {
        "n": len(passages.ids),
        "num_groups": num_groups,
        "coverage": vectors.coverage,
        "seed": params.seed,
    }


def chosen(*readouts: Mapping[str, Any]) -> dict[str, Any]:
    """Details of a measure: what the readouts behind it chose, one a fold; nothing where rows are read as they are."""
    return {"readouts": [dict(found) for found in readouts]} if any(readouts) else {}
