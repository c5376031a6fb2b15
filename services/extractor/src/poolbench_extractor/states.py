"""Collects per-token hidden states into STATES tables (``--keep-activations``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from torch import Tensor

from poolbench.contracts.tables import states_schema
from poolbench.pooling.signals import Signals
from poolbench_extractor.encode import Encoded


class StateCollector:
    """Rows of one layer, filled in any order and written in passage order.

    Half-precision states are stored as float32, which holds them exactly.
    """

    def __init__(self, encoded: Sequence[Encoded], width: int) -> None:
        self._encoded = list(encoded)
        self._width = width
        self._hidden: list[np.ndarray | None] = [None] * len(self._encoded)
        self._inflow: list[np.ndarray | None] = [None] * len(self._encoded)

    def add(self, batch: Sequence[Encoded], states: Sequence[Tensor], signals: Sequence[Signals]) -> None:
        """The states [T, D] and the signals of a batch of passages."""
        for passage, h_TD, given in zip(batch, states, signals, strict=True):
            self._hidden[passage.index] = h_TD.float().cpu().numpy()
            inflow = given.get("inflow")
            self._inflow[passage.index] = inflow if isinstance(inflow, np.ndarray) else None

    def table(self) -> pa.Table:
        """The STATES table."""
        contexts = [passage.context for passage in self._encoded]
        errors = [passage.error for passage in self._encoded]
        columns = [
            pa.array([context.passage_id for context in contexts], pa.string()),
            pa.array([context.token_ids for context in contexts], pa.list_(pa.int32())),
            pa.array([context.offsets[:, 0] for context in contexts], pa.list_(pa.int32())),
            pa.array([context.offsets[:, 1] for context in contexts], pa.list_(pa.int32())),
            pa.array([context.special for context in contexts], pa.list_(pa.bool_())),
            self._hidden_column(),
            pa.array(self._inflow, pa.list_(pa.float32())),
            pa.array([error.status if error else "ok" for error in errors], pa.string()),
            pa.array([str(error) if error else None for error in errors], pa.string()),
        ]
        return pa.Table.from_arrays(columns, schema=states_schema(self._width))

    def _hidden_column(self) -> pa.ListArray:
        """Nested lists from flat memory, without a Python object a number."""
        lengths = [0 if h_TD is None else len(h_TD) for h_TD in self._hidden]
        parts = [h_TD.reshape(-1) for h_TD in self._hidden if h_TD is not None]
        flat = pa.array(np.concatenate(parts) if parts else np.zeros(0, np.float32))
        vectors = pa.FixedSizeListArray.from_arrays(flat, self._width)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        missing = pa.array([h_TD is None for h_TD in self._hidden])
        return pa.ListArray.from_arrays(offsets, vectors, mask=missing)
