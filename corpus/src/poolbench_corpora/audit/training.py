"""The train passages of a concept with the folds of D1, and how they are grouped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolbench.errors import CellError
from poolbench.statistics.folds import connected_groups, grouped_folds
from poolbench.statuses import Status

#: Folds of D1.
FOLDS = 5
#: With fewer groups of a class the intervals are so wide that strategies can hardly be distinguished.
FEW_GROUPS = 50
#: A document of more than this share of a split limits what folds and intervals can say.
LARGE_DOCUMENT = 0.2


@dataclass(frozen=True)
class Training:
    """The train passages of one concept."""

    ids: tuple[str, ...]
    texts: list[str]
    domains: list[str]
    labels: np.ndarray  # 1 positive, 0 negative [n]
    groups: np.ndarray  # connected components of matched pair and source document [n], as in D1
    folds: np.ndarray  # fold of each passage [n]: those of D1 at the same seed
    error: CellError | None  # why there are no folds

    @classmethod
    def of(cls, passages: pa.Table, seed: int) -> Self:
        """Return the train passages among PASSAGES of one concept."""
        train = passages.filter(pc.equal(passages["split"], "train"))
        labels = np.array(train["label"].to_pylist(), dtype=np.int8)
        groups = folds = np.zeros(len(labels), dtype=int)
        error = None
        try:
            if not len(labels):
                raise CellError(Status.TOO_FEW, "there are no train passages")
            groups = connected_groups(train["pair_id"].to_pylist(), train["doc_id"].to_pylist())
            folds = grouped_folds(groups, labels, FOLDS, seed)
        except CellError as caught:
            error = caught
        return cls(
            ids=tuple(train["passage_id"].to_pylist()),
            texts=train["text"].to_pylist(),
            domains=[domain or "" for domain in train["domain"].to_pylist()],
            labels=labels,
            groups=groups,
            folds=folds,
            error=error,
        )

    @property
    def fewest_groups(self) -> int:
        """Return the number of groups of the class that has fewer."""
        return min(len(np.unique(self.groups[self.labels == label])) for label in (0, 1))

    @property
    def largest_group(self) -> float:
        """Return the share of the passages in the largest group."""
        return float(np.bincount(self.groups).max() / len(self.groups)) if len(self.groups) else 0.0
