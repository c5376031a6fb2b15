"""The custom op that steers hidden states in place and counts, per request and layer, what it changed.

All state lies in buffers that are allocated once, so the op can be captured in a CUDA graph: a step only
rewrites ``token_rows``. The count is taken from the hidden states themselves (before against after), not from
the plan: a hook that was compiled away, a slot that was never filled or a coefficient lost in rounding shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from poolbench_steerer.plugin.rows import RowTable


class SteeringState:
    """Device buffers of one worker.

    Attributes:
        table_SD: float32 vectors by slot; slot 0 is zero.
        slots_LR, coefficients_LR: the edit of every row at every layer.
        token_rows_T: row of every token of the running batch; 0 is not steered.
        changed_LR: positions changed so far, by layer and row.
    """

    def __init__(
        self, *, num_layers: int, width: int, num_slots: int, num_rows: int, num_tokens: int,
        device: torch.device, static: bool,
    ) -> None:  # fmt: skip
        self.rows = RowTable(num_layers, num_rows)
        self.static = static  # captured graphs run every layer's op, whether used or not
        self.table_SD = torch.zeros(num_slots + 1, width, device=device)
        self.token_rows_T = torch.zeros(num_tokens, dtype=torch.int64, device=device)
        self.slots_LR = torch.zeros(num_layers, num_rows, dtype=torch.int64, device=device)
        self.coefficients_LR = torch.zeros(num_layers, num_rows, device=device)
        self.changed_LR = torch.zeros(num_layers, num_rows, dtype=torch.int32, device=device)
        self._edited_LT = np.zeros((num_layers, 0), dtype=bool)  # on the host, unless graphs are captured
        self._num_filled = 0

    def admit(self, request_id: str, wire: dict[str, Any]) -> None:
        """Fills the row of a request that is scheduled for the first time."""
        row = self.rows.admit(request_id, wire)
        if row is not None:
            self.slots_LR[:, row] = torch.from_numpy(self.rows.slots[:, row])
            self.coefficients_LR[:, row] = torch.from_numpy(self.rows.coefficients[:, row])
            self.changed_LR[:, row] = 0

    def begin_batch(self, token_rows: np.ndarray) -> None:
        """Sets the row of every token of the next forward pass; all tokens after them are padding."""
        filled = len(token_rows)
        self.token_rows_T[:filled] = torch.from_numpy(token_rows)
        if self._num_filled > filled:
            self.token_rows_T[filled : self._num_filled] = 0
        self._num_filled = filled
        if not self.static:
            self._edited_LT = self.rows.edited(token_rows)

    def tokens_at(self, layer: int) -> torch.Tensor | None:
        """The tokens that are changed at ``layer``; None for all, which captured graphs must assume."""
        if self.static:
            return None
        return torch.from_numpy(np.flatnonzero(self._edited_LT[layer])).to(self.token_rows_T.device)


def add_vectors(hidden_TD: torch.Tensor, state: SteeringState, layer: int) -> None:
    """Steers the tokens of a batch at ``layer`` in place, and counts those that changed."""
    rows_T = state.token_rows_T[: hidden_TD.shape[0]]
    tokens_N = state.tokens_at(layer)
    if tokens_N is None:
        hidden_TD.copy_(_steered(hidden_TD, rows_T, state, layer))
    elif len(tokens_N) > 0:
        rows_N = rows_T.index_select(0, tokens_N)
        steered_ND = _steered(hidden_TD.index_select(0, tokens_N), rows_N, state, layer)
        hidden_TD.index_copy_(0, tokens_N, steered_ND)


def _steered(hidden_ND: torch.Tensor, rows_N: torch.Tensor, state: SteeringState, layer: int) -> torch.Tensor:
    """h + coefficient * vector by row; adds to the count of each row whether h changed."""
    slots_N = state.slots_LR[layer].index_select(0, rows_N)
    coefficients_N = state.coefficients_LR[layer].index_select(0, rows_N)
    delta_ND = state.table_SD.index_select(0, slots_N).mul_(coefficients_N.unsqueeze(1))
    steered_ND = hidden_ND + delta_ND.to(hidden_ND.dtype)
    # NaN, which padding may hold, is no change: comparisons with it are false.
    changed_N = (steered_ND - hidden_ND).abs_().amax(dim=1) > 0
    state.changed_LR[layer].index_add_(0, rows_N, changed_N.to(torch.int32))
    return steered_ND


_STATE: list[SteeringState] = []


def bind(state: SteeringState) -> None:
    """Makes ``state`` the one that the op of this process works on."""
    _STATE[:] = [state]


@torch.library.custom_op("poolbench_steerer::steer", mutates_args=("hidden_TD",))
def steer(hidden_TD: torch.Tensor, layer: int) -> None:
    """Steers ``hidden_TD`` in place; opaque to torch.compile, which would otherwise trace state away."""
    add_vectors(hidden_TD, _STATE[0], layer)


@steer.register_fake
def _(hidden_TD: torch.Tensor, layer: int) -> None:
    return None


def steer_output(layer: int) -> Any:
    """A forward hook for block ``layer``.

    A block returns its output, or the fused pair (output, residual) whose sum is the residual stream. Adding
    to the first steers the sum exactly once.
    """

    def hook(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        torch.ops.poolbench_steerer.steer(hidden, layer)

    return hook


def decoder_blocks(model: torch.nn.Module, num_layers: int) -> list[torch.nn.Module]:
    """The decoder blocks of a model: its only module list of ``num_layers`` entries.

    Raises:
        RuntimeError: When there is none or more than one.
    """
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == num_layers
    ]
    if len(found) != 1:
        names = ", ".join(name for name, _ in found) or "none"
        raise RuntimeError(f"expected one list of {num_layers} blocks in {type(model).__name__}, found: {names}")
    return list(found[0][1])
