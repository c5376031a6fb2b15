"""Collect pooled vectors batch by batch into VECTORS tables, one per strategy."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import vector_column, vectors_schema
from poolbench.errors import CellError
from poolbench.pooling.batch import Outcome, split_parts
from poolbench.pooling.registry import STRATEGIES
from poolbench.pooling.sinks import LEAVE_OUT, SinkRule
from poolbench.statuses import Status


class VectorCollector:
    """Collect the pooled vectors of every strategy at one layer of width D.

    Passages are added in any order and written in passage order.
    """

    def __init__(
        self, passage_ids: Sequence[str], strategy_ids: Sequence[str], width: int, sinks: SinkRule = LEAVE_OUT
    ) -> None:
        num, shape = len(passage_ids), (len(strategy_ids), len(passage_ids))
        self._ids = list(passage_ids)
        self._column = {strategy_id: index for index, strategy_id in enumerate(strategy_ids)}
        self._vectors = np.full((*shape, width), np.nan, dtype=np.float32)
        self._parts: dict[int, np.ndarray] = {}
        self._applied = np.zeros(shape, dtype=bool)
        self._share = np.zeros(shape, dtype=np.float32)
        self._error: list[list[CellError | None]] = [[None] * num for _ in strategy_ids]
        self._sinks, self._num_sinks = sinks, np.zeros(num, dtype=np.int32)

    def add(self, passage: int, vectors_RD: np.ndarray, outcomes: Sequence[Outcome], num_sinks: int) -> None:
        """Add the output of `pool_layer` for one passage. A vector that is not finite becomes a `non_finite` row."""
        self._num_sinks[passage] = num_sinks
        vectors_SD, parts = split_parts(vectors_RD, outcomes)
        self._vectors[:, passage] = vectors_SD
        finite = np.isfinite(vectors_SD).all(axis=1)
        for index, parts_PD in parts.items():
            if index not in self._parts:
                _, num, width = self._vectors.shape
                self._parts[index] = np.full((num, len(parts_PD), width), np.nan, dtype=np.float32)
            self._parts[index][passage] = parts_PD
            finite[index] = np.isfinite(parts_PD).all()
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, CellError):
                self._error[index][passage] = outcome
            elif not finite[index]:
                self._error[index][passage] = CellError(Status.NON_FINITE, "hidden states hold NaN or infinity")
            else:
                self._applied[index, passage] = outcome.applied
                self._share[index, passage] = outcome.token_share

    def fail(self, passage: int, error: CellError) -> None:
        """Record that the passage could not be computed under any strategy."""
        for errors in self._error:
            errors[passage] = error

    def table(self, strategy_id: str) -> pa.Table:
        """Return the VECTORS table of one strategy."""
        index = self._column[strategy_id]
        errors = self._error[index]
        valid = np.array([error is None for error in errors], dtype=bool)
        width, parts_nPD = self._vectors.shape[2], self._parts.get(index)
        num_parts = 1 if parts_nPD is None else parts_nPD.shape[1]
        matrix = self._vectors[index] if parts_nPD is None else parts_nPD.reshape(len(self._ids), -1)
        columns = [
            pa.array(self._ids, pa.string()),
            vector_column(matrix, valid),
            pa.array(self._applied[index]),
            pa.array(self._share[index]),
            pa.array(self._num_sinks),
            pa.array(self._num_sinks * (self._sinks.leave_out and STRATEGIES.get(strategy_id).leaves_out_sinks)),
            pa.array([error.status if error else Status.OK for error in errors], pa.string()),
            pa.array([str(error) if error else None for error in errors], pa.string()),
        ]
        schema = vectors_schema(width, num_parts, STRATEGIES.get(strategy_id).readout)
        return pa.Table.from_arrays(columns, schema=schema)
