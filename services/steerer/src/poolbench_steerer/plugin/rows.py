"""Worker side: the request of every token of a batch, and its steering.

A request that generates a text owns a *row* from admission until its counts are read. A row holds, per layer, the
edits of the request; row 0 belongs to no request. Per step the host writes one row index per token, whatever the
number of layers and settings. Each row exists three times, `num_rows` apart:

1. Tokens that are steered for the first time carry the row itself.
2. Tokens that a preempted request computes again carry its twin, which has the same edits: they are steered alike
   but counted apart.
3. Tokens that are not steered carry a copy without edits, so that a broken state can be assigned to this request.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from poolbench_steerer.plugin.spec import OPERATION_CODES

#: A position that no token has.
NEVER = np.iinfo(np.int64).max
#: How often each row exists, and which of these copies carries tokens that are not steered.
NUM_COPIES, UNSTEERED = 3, 2
#: Latest positions of a row whose counts can still be taken off its totals (`SteeringState.latest_LRP`).
NUM_LATEST = 64
#: What a row does at a layer: nothing, one addition, anything else.
NOTHING, ONE_ADDITION, GENERAL = 0, 1, 2


class RowTable:
    """Rows of steered requests and the count of positions that each should have steered.

    Attributes:
        slots: int64 [layers, edits, 3 * rows], bank slot of the row's edit, 0 for none.
        operations: int64 [layers, edits, 3 * rows], code of the edit's operation.
        coefficients: float32 [layers, edits, 3 * rows].
        kinds: int8 [layers, 3 * rows], kind of work of the row at a layer. Edits with a condition are general work.
        edited: bool [3 * rows], whether the row has edits.
        condition_slots: int64 [layers, 1, 3 * rows], bank slot of the row's condition at the layer that it reads, 0 for
            none.
        conditions: float32 [2, 1, 3 * rows], of the row's condition its sign, 1 for above and -1 for below a threshold,
            and its threshold. The sign 0 stands for no condition.
        conditions_changed: Whether conditions have changed since this was last set to False.
        positions: int64 [tokens], position of every token of the latest batch in its request.
    """

    def __init__(self, num_layers: int, num_rows: int, num_edits: int = 1) -> None:
        self.num_rows = num_rows
        shape = (num_layers, num_edits, NUM_COPIES * num_rows)
        self.slots = np.zeros(shape, dtype=np.int64)
        self.operations = np.zeros(shape, dtype=np.int64)
        self.coefficients = np.zeros(shape, dtype=np.float32)
        self.kinds = np.zeros((num_layers, NUM_COPIES * num_rows), dtype=np.int8)
        self.edited = np.zeros(NUM_COPIES * num_rows, dtype=bool)
        self.condition_slots = np.zeros((num_layers, 1, NUM_COPIES * num_rows), dtype=np.int64)
        self.conditions = np.zeros((2, 1, NUM_COPIES * num_rows), dtype=np.float32)
        self.conditions_changed = False
        # The same memory with copies and rows on axes of their own: writing several copies is one assignment.
        self._tables = tuple(
            table.reshape(num_layers, num_edits, NUM_COPIES, num_rows)
            for table in (self.slots, self.operations, self.coefficients)
        )
        self._kinds = self.kinds.reshape(num_layers, NUM_COPIES, num_rows)
        self.positions = np.zeros(0, dtype=np.int64)
        self._start = np.full(num_rows, NEVER, dtype=np.int64)
        self._stop = np.full(num_rows, NEVER, dtype=np.int64)
        self._frontier = np.zeros(num_rows, dtype=np.int64)  # first position not steered yet
        self._repeated = np.zeros(num_rows, dtype=np.int64)  # steered again after a preemption
        self._skipped = np.zeros(num_rows, dtype=np.int64)  # taken from a cache instead
        self._row_of: dict[str, int] = {}
        self._batch: tuple[list[str], np.ndarray] = ([], np.zeros(0, dtype=np.int64))

    def admit(self, request_id: str, wire: dict[str, Any]) -> int | None:
        """Fill and return the row of a new request. For a preempted request that comes back, return None."""
        row = int(wire["row"])
        if self._row_of.get(request_id) == row:
            return None
        self._row_of[request_id] = row
        for table in self._tables:
            table[..., row] = 0
        self._kinds[:, :, row] = NOTHING
        for layer, slot, operation, alpha in wire["edits"]:
            self._add_edit(layer, row, (slot, operation, alpha))
        self.edited.reshape(NUM_COPIES, self.num_rows)[:UNSTEERED, row] = bool(wire["edits"])
        self._set_condition(row, wire.get("where"))
        self._start[row] = self._frontier[row] = NEVER if wire["start"] is None else int(wire["start"])
        self._stop[row] = NEVER if wire["stop"] is None else int(wire["stop"])
        self._repeated[row] = self._skipped[row] = 0
        self._batch = ([], self._batch[1])
        return row

    def release(self, request_ids: Iterable[str]) -> None:
        """Forget finished requests. A row keeps its counts until another request takes the row."""
        for request_id in request_ids:
            self._row_of.pop(request_id, None)
        self._batch = ([], self._batch[1])

    def assign(self, request_ids: Sequence[str], query_start: np.ndarray, num_computed: np.ndarray) -> np.ndarray:
        """Return the row of each token of a batch [tokens], int64, in the copy for its steering, or 0 without an owner.

        Args:
            query_start: [requests + 1], first token of each request in the batch.
            num_computed: [requests], position of each request's first token.
        """
        rows = self._rows_of(request_ids)
        num_tokens = np.diff(query_start).astype(np.int64)
        begin = num_computed.astype(np.int64)
        offsets = np.arange(int(query_start[-1])) - np.repeat(query_start[:-1], num_tokens)
        self.positions = np.repeat(begin, num_tokens) + offsets
        owners = np.repeat(rows, num_tokens)
        within = (self.positions >= self._start[owners]) & (self.positions < self._stop[owners])
        token_rows: np.ndarray = np.where(within | (owners == 0), owners, owners + UNSTEERED * self.num_rows)
        frontier = self._frontier[rows]
        if self._account(rows, begin, begin + num_tokens):
            again = within & (self.positions < np.repeat(frontier, num_tokens))
            token_rows[again] += self.num_rows
        return token_rows

    def account(self, row: int) -> tuple[int, int]:
        """Return positions of a row that were steered more than once, and that were skipped."""
        return int(self._repeated[row]), int(self._skipped[row])

    def steered_from(self, row: int, position: int) -> range:
        """Return the positions from `position` on that were steered for a row's request so far."""
        return range(max(position, int(self._start[row])), int(self._frontier[row]))

    def _add_edit(self, layer: int, row: int, edit: tuple[int, int, float]) -> None:
        place = int(np.count_nonzero(self.operations[layer, :, row]))
        for table, value in zip(self._tables, edit, strict=True):
            table[layer, place, :UNSTEERED, row] = value
        alone = place == 0 and edit[1] == OPERATION_CODES["add"]
        self._kinds[layer, :UNSTEERED, row] = ONE_ADDITION if alone else GENERAL

    def _set_condition(self, row: int, where: Sequence[Any] | None) -> None:
        if where is None and self.conditions[0, 0, row] == 0:
            return
        self.conditions_changed = True
        copies = [row + copy * self.num_rows for copy in range(UNSTEERED)]
        self.condition_slots[..., copies] = 0
        self.conditions[..., copies] = 0
        if where is not None:
            layer, slot, *condition = where
            self.condition_slots[layer, 0, copies] = slot
            self.conditions[:, 0, copies] = np.array(condition)[:, None]
            self._kinds[:, :UNSTEERED, row] = np.where(self._kinds[:, :UNSTEERED, row] == NOTHING, NOTHING, GENERAL)

    def _rows_of(self, request_ids: Sequence[str]) -> np.ndarray:
        known_ids, known_rows = self._batch
        if known_ids and known_ids == request_ids:
            return known_rows
        rows = np.array([self._row_of.get(request_id, 0) for request_id in request_ids], dtype=np.int64)
        self._batch = (list(request_ids), rows)
        return rows

    def _account(self, rows: np.ndarray, begin: np.ndarray, end: np.ndarray) -> bool:
        """Move the frontiers; returns whether any position is steered again."""
        # Row 0 may occur many times; its start is never reached, so it only ever receives zeros.
        first = np.maximum(begin, self._start[rows])
        end = np.minimum(end, self._stop[rows])
        count = np.maximum(end - first, 0)
        frontier = self._frontier[rows]
        fresh = np.clip(end - np.maximum(first, frontier), 0, count)
        repeated = count - fresh
        self._repeated[rows] += repeated
        self._skipped[rows] += np.where(count > 0, np.maximum(first - frontier, 0), 0)
        self._frontier[rows] = np.where(count > 0, np.maximum(frontier, end), frontier)
        return bool(repeated.any())
