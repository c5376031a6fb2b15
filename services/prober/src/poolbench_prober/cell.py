"""One (concept, strategy, layer) while D1 is computed, and what comes out of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from poolbench.directions import Direction
from poolbench.errors import CellError
from poolbench.suites import Measure
from poolbench_prober.config import ProbeParams
from poolbench_prober.corpus import Passages
from poolbench_prober.design import Design
from poolbench_prober.metrics import Resamples
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
class Cell:
    """The usable rows of a cell, with the design restricted to them.

    Attributes:
        design: Design of the concept.
        params: Parameters.
        train: Passages of the usable rows [n].
        vectors_nD: Their vectors.
        rows: Their row numbers in the train split.
        fields: Fields that all measures share.
    """

    design: Design
    params: ProbeParams
    train: Passages
    vectors_nD: np.ndarray
    rows: np.ndarray
    fields: dict[str, Any]

    @property
    def folds(self) -> np.ndarray:
        """Fold of each row [n]."""
        return self.design.folds[self.rows]

    @property
    def labels(self) -> np.ndarray:
        """Labels of each probe [n, K]; column 0 is the concept."""
        return self.design.labelings.labels_nK[self.rows]

    @property
    def resamples(self) -> Resamples:
        """Bootstrap over the groups of the rows."""
        return Resamples(self.design.train_weights[:, self.rows], self.train.groups)


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
