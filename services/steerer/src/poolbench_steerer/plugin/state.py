"""Device buffers of the steering worker, and what one batch needs of them at each layer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from poolbench.pooling.transfers import HostCopy, to_device
from poolbench_steerer.plugin.kept import BatchStates, KeptStates
from poolbench_steerer.plugin.readings import KEEP, BatchReadings, ReadingTable
from poolbench_steerer.plugin.rows import GENERAL, NUM_COPIES, NUM_LATEST, ONE_ADDITION, RowTable
from poolbench_steerer.plugin.spec import MAX_READINGS

#: Tokens at the front of a batch whose stream after the last block is kept.
NUM_WATCHED = 4
#: What `latest_LRP` adds up: the state changed, all edits were applied, or the condition did not hold.
CHANGED, APPLIED, SPARED = 1, 2, 4
#: (hidden, residual or None, state, layer): steers in place and counts, without the host's plan.
Kernel = Callable[[torch.Tensor, torch.Tensor | None, "SteeringState", int], None]


class SteeringState:
    """Device buffers of one worker. R counts every copy of every row.

    Attributes:
        table_SD: float32 vectors by slot; slot 0 is zero.
        slots_LER, operations_LER, coefficients_LER: the edits of every row at every layer.
        token_rows_T: row of every token of the running batch, or 0 without an owner.
        token_places_T: place of every token of the running batch in `latest_LRP`: its position modulo P.
        changed_LR: positions whose hidden state changed so far, by layer and row.
        applied_LR: positions that all edits of the row met.
        spared_LR: positions at which the row's condition did not hold.
        latest_LRP: of the latest P positions of each row with edits at a layer, the sum of `CHANGED`, `APPLIED` and
            `SPARED`. An engine that schedules ahead computes positions after the end of a text. The host learns of the
            end later, and takes these positions off the counts.
        readings_LKR: the readings of every row at every layer, as codes (`ReadingTable`).
        scores_TK: score of every reading at every token of the running batch; NaN until it is read.
        states_TD: state of every token of the running batch whose text is pooled, in the number type of the model; NaN
            until it is written.
        condition_slots_L1R, conditions_21R: the conditions of every row, as in `RowTable`.
        spared_T: 1 for each token of the running batch at which the condition of its row does not hold, from the layer
            on that the condition reads.
        watched_WD: stream of a batch's first tokens after the last block, before its edits, for the self-test.
        broken_LR: positions whose state was not finite, or too large for the model's norms, after an edit or behind
            the last block.
        kernel: Function that steers on devices that must not wait for the host. None if the host plans each batch.
    """

    def __init__(
        self, *, num_layers: int, width: int, num_slots: int, num_rows: int, num_tokens: int,
        device: torch.device, num_edits: int = 1, window: int = 0, kernel: Kernel | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        self.rows = RowTable(num_layers, num_rows, num_edits)
        self.kept = KeptStates(num_rows, width, dtype)
        self.readings = ReadingTable(num_layers, num_rows, window)
        self.kernel = kernel
        self.device = device
        self.table_SD = torch.zeros(num_slots + 1, width, device=device)
        self.token_rows_T = torch.zeros(num_tokens, dtype=torch.int64, device=device)
        shape = (num_layers, num_edits, NUM_COPIES * num_rows)
        self.slots_LER = torch.zeros(shape, dtype=torch.int64, device=device)
        self.operations_LER = torch.zeros(shape, dtype=torch.int64, device=device)
        self.coefficients_LER = torch.zeros(shape, device=device)
        self.readings_LKR = torch.zeros(self.readings.codes.shape, dtype=torch.int64, device=device)
        self.scores_TK = torch.full((num_tokens, MAX_READINGS), torch.nan, device=device)
        self.states_TD = torch.full((num_tokens, width), torch.nan, dtype=dtype, device=device)
        counts = (num_layers, NUM_COPIES * num_rows)
        self.changed_LR = torch.zeros(counts, dtype=torch.int32, device=device)
        self.applied_LR = torch.zeros(counts, dtype=torch.int32, device=device)
        self.spared_LR = torch.zeros(counts, dtype=torch.int32, device=device)
        self.broken_LR = torch.zeros(counts, dtype=torch.int32, device=device)
        self.condition_slots_L1R = torch.zeros(self.rows.condition_slots.shape, dtype=torch.int64, device=device)
        self.conditions_21R = torch.zeros(self.rows.conditions.shape, device=device)
        self.spared_T = torch.zeros(num_tokens, dtype=torch.int32, device=device)
        self.token_places_T = torch.zeros(num_tokens, dtype=torch.int64, device=device)
        self.latest_LRP = torch.zeros((num_layers, num_rows, NUM_LATEST), dtype=torch.uint8, device=device)
        self.watched_WD = torch.zeros(NUM_WATCHED, width, device=device)
        self.last_layer = num_layers - 1
        self._token_rows = np.zeros(0, dtype=np.int64)  # those of the running batch, on the host
        self._has_edits = False  # whether the running batch has tokens with edits
        self._num_filled = 0
        self._admitted: list[int] = []
        self._works: list[LayerWork | None] = [None] * num_layers
        self._reads: list[LayerReads | None] = [None] * num_layers
        self._conditions: list[LayerConditions | None] = [None] * num_layers
        self._read: BatchReadings | None = None  # scores of the running batch that are on the device only
        self._to_keep: BatchStates | None = None  # states of the running batch, likewise
        self._copies: deque[tuple[HostCopy, Callable[[torch.Tensor], None]]] = deque()  # with what takes them

    def admit(self, request_id: str, wire: dict[str, Any]) -> None:
        """Fill the row of a request that is scheduled for the first time."""
        row = self.rows.admit(request_id, wire)
        if row is not None:
            self.readings.admit(row, wire)
            self.kept.admit(row, wire["pool"][1] if "pool" in wire else None)
            self._admitted += [row + copy * self.rows.num_rows for copy in range(NUM_COPIES)]

    def fill(self, slots: list[int], vectors_ND: torch.Tensor) -> None:
        """Write float32 vectors into slots by one transfer."""
        self.table_SD[torch.tensor(slots, device=self.device)] = vectors_ND.to(self.device)
        self._token_rows = self._token_rows[:0]

    def begin_batch(self, token_rows: np.ndarray) -> None:
        """Set the row of every token of the next pass, 0 for padding. An unchanged batch is not copied again."""
        self._fetch()
        while self._copies and self._copies[0][0].is_done:
            self._keep_next()
        if self._admitted:
            self._copy_admitted()
        self._read = self.readings.of_batch(token_rows, self.rows.positions)
        self._to_keep = self.kept.of_batch(token_rows, self.rows.positions)
        filled = len(token_rows)
        if not (filled == self._num_filled and np.array_equal(token_rows, self._token_rows)):
            self._set_rows(token_rows)
        if self._has_edits:
            places = self.rows.positions % NUM_LATEST
            self.token_places_T[: len(places)] = to_device(places, self.device)

    def _set_rows(self, token_rows: np.ndarray) -> None:
        filled = len(token_rows)
        self._has_edits = bool(self.rows.edited[token_rows].any())
        self.token_rows_T[:filled] = to_device(token_rows, self.device)
        if self._num_filled > filled:
            self.token_rows_T[filled : self._num_filled] = 0
        self._num_filled, self._token_rows = filled, token_rows
        if self.kernel is None:
            kinds = self.rows.kinds[:, token_rows]
            conditions_2T = self.rows.conditions[:, 0, token_rows]
            has_condition = conditions_2T[0] != 0
            self._works = [LayerWork.of(kinds[layer], token_rows, has_condition) for layer in range(len(kinds))]
            self._reads, self._conditions = [None] * len(kinds), [None] * len(kinds)
            if has_condition.any():
                slots_LT = self.rows.condition_slots[:, 0, token_rows]
                self._conditions = [LayerConditions.of(slots_T, conditions_2T, self) for slots_T in slots_LT]
            if self.readings.in_use:
                codes_LKT = self.readings.codes[:, :, token_rows]
                self._reads = [LayerReads.of(codes_KT, self) for codes_KT in codes_LKT]

    def keep_read(self) -> None:
        """Wait until the scores and states of all passes so far are on the host."""
        self._fetch()
        while self._copies:
            self._keep_next()

    def _keep_next(self) -> None:
        copy, keep = self._copies.popleft()
        keep(copy.wait())

    def _fetch(self) -> None:
        """Start to copy the scores and states of the last pass to the host, if any were read.

        What does not run in the next pass must not leave an old score or state.
        """
        if self._read is not None:
            scores_TK = self.scores_TK[: self._num_filled]
            self._copies.append((HostCopy(scores_TK.clone()), partial(self.readings.keep, self._read)))
            scores_TK.fill_(torch.nan)
        if self._to_keep is not None:
            tokens_N = to_device(self._to_keep.tokens, self.device)
            self._copies.append((HostCopy(self.states_TD.index_select(0, tokens_N)), self._to_keep.keep))
            self.states_TD.index_fill_(0, tokens_N, torch.nan)
        self._read = self._to_keep = None

    def watch(self, hidden_TD: torch.Tensor, residual_TD: torch.Tensor | None) -> None:
        """Record the residual stream of the first tokens. Unlike Python hooks, this also runs in captured graphs."""
        count = min(len(hidden_TD), NUM_WATCHED)
        self.watched_WD[:count].copy_(hidden_TD[:count])
        if residual_TD is not None:
            self.watched_WD[:count].add_(residual_TD[:count])

    def work_at(self, layer: int) -> LayerWork | None:
        """Return the running batch's work at a layer, or None."""
        return self._works[layer]

    def conditions_at(self, layer: int) -> LayerConditions | None:
        """Return the conditions that are read at a layer in the running batch, or None."""
        return self._conditions[layer]

    def reads_at(self, layer: int) -> LayerReads | None:
        """Return the readings at a layer in the running batch, or None."""
        return self._reads[layer]

    def _copy_admitted(self) -> None:
        """Copy the rows of all requests admitted since the last batch, in a few transfers."""
        rows_A = to_device(np.array(self._admitted), self.device)
        tables: list[tuple[torch.Tensor, np.ndarray]] = [
            (self.slots_LER, self.rows.slots),
            (self.operations_LER, self.rows.operations),
            (self.coefficients_LER, self.rows.coefficients),
        ]
        if self.readings.changed:
            tables.append((self.readings_LKR, self.readings.codes))
            self.readings.changed = False
        if self.rows.conditions_changed:
            tables.append((self.condition_slots_L1R, self.rows.condition_slots))
            tables.append((self.conditions_21R, self.rows.conditions))
            self.rows.conditions_changed = False
        for on_device, on_host in tables:
            on_device[:, :, rows_A] = to_device(on_host[:, :, self._admitted], self.device)
        for counts_LR in (self.changed_LR, self.applied_LR, self.spared_LR, self.broken_LR):
            counts_LR[:, rows_A] = 0
        self.latest_LRP[:, rows_A[::NUM_COPIES]] = 0
        self._admitted = []
        self._token_rows = self._token_rows[:0]  # what a row means has changed


class LayerWork:
    """The tokens of one batch that are changed at one layer, reused while the batches do not change.

    Attributes:
        additions_N, addition_rows_N: Tokens whose only edit is one addition, and their rows.
        general_N, general_rows_N: Tokens with any other edits, and their rows.
        conditional_N: Which of `general_N` have a condition, bool. None if none has one.
    """

    def __init__(self, kinds: np.ndarray, token_rows: np.ndarray, has_condition: np.ndarray) -> None:
        self.additions_N, self.addition_rows_N = _selected(kinds == ONE_ADDITION, token_rows)
        self.general_N, self.general_rows_N = _selected(kinds == GENERAL, token_rows)
        conditional = has_condition[kinds == GENERAL]
        self.conditional_N = torch.from_numpy(conditional) if conditional.any() else None
        self._delta_ND: torch.Tensor | None = None
        self.met_N: torch.Tensor | None = None  # of additions_N: whether the vector is not zero, int32

    @classmethod
    def of(cls, kinds: np.ndarray, token_rows: np.ndarray, has_condition: np.ndarray) -> LayerWork | None:
        """Return none when no token is changed."""
        return cls(kinds, token_rows, has_condition) if kinds.any() else None

    def delta(self, state: SteeringState, layer: int) -> torch.Tensor:
        """Return the addition of each token of `additions_N`, float32 [N, D]."""
        if self._delta_ND is None:
            assert self.addition_rows_N is not None
            # The tokens of a text share a row, and with it the addition.
            rows_R, places_N = self.addition_rows_N.unique(return_inverse=True)
            slots_R = state.slots_LER[layer, 0].index_select(0, rows_R)
            alphas_R = state.coefficients_LER[layer, 0].index_select(0, rows_R)
            vectors_RD = state.table_SD.index_select(0, slots_R)
            met_R = vectors_RD.any(dim=1).to(torch.int32)  # before a tiny coefficient makes all of it zero
            self.met_N = met_R.index_select(0, places_N)
            self._delta_ND = vectors_RD.mul_(alphas_R.unsqueeze(1)).index_select(0, places_N)
        return self._delta_ND


class LayerReads:
    """The readings of one batch at one layer, reused while the batches do not change.

    Attributes:
        tokens_N: Token of each reading.
        places_N: Place of the score of each reading in the flat `scores_TK`.
        units_ND: Direction of each reading, of length 1, float32.
        kept_N: Tokens whose state is kept.
    """

    def __init__(self, codes_KT: np.ndarray, state: SteeringState) -> None:
        self.kept_N = torch.from_numpy(np.nonzero(codes_KT == KEEP)[1])
        tokens = np.nonzero(codes_KT > 0)[1]
        slots, numbers = np.divmod(codes_KT[codes_KT > 0], MAX_READINGS)
        self.tokens_N = torch.from_numpy(tokens)
        self.places_N = torch.from_numpy(tokens * MAX_READINGS + numbers)
        self.units_ND = _units(state, slots)

    @classmethod
    def of(cls, codes_KT: np.ndarray, state: SteeringState) -> LayerReads | None:
        """Return none when nothing is read."""
        return cls(codes_KT, state) if codes_KT.any() else None


class LayerConditions:
    """The conditions of one batch that are read at one layer, reused while the batches do not change.

    Attributes:
        tokens_N: Token of each condition.
        units_ND: Direction of each condition, of length 1, float32.
        signs_N, thresholds_N: A condition holds if sign * projection > sign * threshold.
    """

    def __init__(self, slots_T: np.ndarray, conditions_2T: np.ndarray, state: SteeringState) -> None:
        tokens = np.flatnonzero(slots_T)
        self.tokens_N = torch.from_numpy(tokens)
        self.units_ND = _units(state, slots_T[tokens])
        self.signs_N, self.thresholds_N = torch.from_numpy(conditions_2T[:, tokens])

    @classmethod
    def of(cls, slots_T: np.ndarray, conditions_2T: np.ndarray, state: SteeringState) -> LayerConditions | None:
        """Return none when no condition is read."""
        return cls(slots_T, conditions_2T, state) if slots_T.any() else None


def _units(state: SteeringState, slots: np.ndarray) -> torch.Tensor:
    """Return the vectors in slots at length 1, float32 [slots, D]."""
    vectors_ND = state.table_SD.index_select(0, torch.from_numpy(slots))
    return torch.nn.functional.normalize(vectors_ND, eps=torch.finfo(torch.float32).tiny)


def _selected(mask: np.ndarray, token_rows: np.ndarray) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    tokens = np.flatnonzero(mask)
    if len(tokens) == 0:
        return None, None
    return torch.from_numpy(tokens), torch.from_numpy(token_rows[tokens])


#: A norm sums the squares of a state in float32: 65,536 squares of 2**50 are still finite.
_WIDE = 2.0**50


def state_limit(dtype: torch.dtype) -> float:
    """Return the largest allowed state element: the maximum of float16, else 2**50, so that norms stay finite."""
    return min(_WIDE, torch.finfo(dtype).max)
