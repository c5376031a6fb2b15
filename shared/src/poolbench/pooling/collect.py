"""Collects pooled vectors batch by batch into VECTORS tables, one a strategy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import vector_column, vectors_schema
from poolbench.errors import CellError
from poolbench.pooling.batch import Outcome


class VectorCollector:
    """Rows of every strategy at one layer, filled in any order and written in passage order.

    Args:
        passage_ids: Ids in the order of the table.
        strategy_ids: One table each.
        width: Width D of the vectors.
    """

    def __init__(self, passage_ids: Sequence[str], strategy_ids: Sequence[str], width: int) -> None:
        num, shape = len(passage_ids), (len(strategy_ids), len(passage_ids))
        self._ids = list(passage_ids)
        self._column = {strategy_id: index for index, strategy_id in enumerate(strategy_ids)}
        self._vectors = np.full((*shape, width), np.nan, dtype=np.float32)
        self._applied = np.zeros(shape, dtype=bool)
        self._share = np.zeros(shape, dtype=np.float32)
        self._error: list[list[CellError | None]] = [[None] * num for _ in strategy_ids]

    def add(self, passage: int, vectors_SD: np.ndarray, outcomes: Sequence[Outcome]) -> None:
        """One passage under every strategy; a vector that is not finite becomes a ``non_finite`` row."""
        self._vectors[:, passage] = vectors_SD
        finite = np.isfinite(vectors_SD).all(axis=1)
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, CellError):
                self._error[index][passage] = outcome
            elif not finite[index]:
                self._error[index][passage] = CellError("non_finite", "hidden states hold NaN or infinity")
            else:
                self._applied[index, passage] = outcome.applied
                self._share[index, passage] = outcome.token_share

    def fail(self, passage: int, error: CellError) -> None:
        """The passage could not be computed under any strategy."""
        for errors in self._error:
            errors[passage] = error

    def table(self, strategy_id: str) -> pa.Table:
        """The VECTORS table of one strategy."""
        index = self._column[strategy_id]
        errors = self._error[index]
        valid = np.array([error is None for error in errors], dtype=bool)
        matrix = self._vectors[index]
        columns = [
            pa.array(self._ids, pa.string()),
            vector_column(matrix, valid),
            pa.array(self._applied[index]),
            pa.array(self._share[index]),
            pa.array([error.status if error else "ok" for error in errors], pa.string()),
            pa.array([str(error) if error else None for error in errors], pa.string()),
        ]
        return pa.Table.from_arrays(columns, schema=vectors_schema(matrix.shape[1]))
