"""The custom op that steers hidden states in place, counts per request and layer what it changed, and reads along.

All state lies in buffers that are allocated once, so the op can be captured in a CUDA graph: a step only
rewrites `token_rows`. The counts compare the hidden states before and after, so they reveal a hook that was
compiled away, a slot that was never filled or a coefficient lost in rounding.

A state that an edit made too large is set to zero and counted as broken; so is any state behind the last block.
Only these places are guarded, because a guard on every layer costs several percent. A state that breaks in between
reaches the cache blocks of its own request alone, and `runner` clears blocks before another request gets them.
"""

from typing import Any

import torch

from poolbench_steerer.plugin.spec import OPERATION_CODES
from poolbench_steerer.plugin.state import (
    APPLIED,
    CHANGED,
    SPARED,
    LayerConditions,
    LayerReads,
    LayerWork,
    SteeringState,
    state_limit,
)


def steer_tokens(hidden: torch.Tensor, residual: torch.Tensor | None, state: SteeringState, layer: int) -> None:
    """Steer the tokens of a batch at `layer` in place, count changed tokens, and compute the readings.

    Args:
        hidden: Output of the block, [T, D], or [1, T, D] from models that vLLM runs with Transformers' own
            code; padding may follow the batch's tokens.
        residual: Second part of a fused pair whose sum is the residual stream. None if `hidden` is the whole stream.
    """
    hidden_TD = hidden.view(-1, hidden.shape[-1])
    residual_TD = None if residual is None else residual.view(-1, residual.shape[-1])
    if layer == state.last_layer:
        state.watch(hidden_TD, residual_TD)
    if state.kernel is not None:
        state.kernel(hidden_TD, residual_TD, state, layer)
        return
    conditions = state.conditions_at(layer)
    if conditions is not None:
        _decide(hidden_TD, residual_TD, state, conditions)
    work = state.work_at(layer)
    if work is not None and work.additions_N is not None:
        _add(hidden_TD, state, layer, work)
    if work is not None and work.general_N is not None:
        _edit(hidden_TD, residual_TD, state, layer, work)
    reads = state.reads_at(layer)
    if reads is not None:
        _read(hidden_TD, residual_TD, state, reads)
    if layer == state.last_layer:
        guard(hidden_TD, residual_TD, state)


def guard(hidden_TD: torch.Tensor, residual_TD: torch.Tensor | None, state: SteeringState) -> None:
    """Count and clear every broken state behind the last block."""
    if _surely_sound(hidden_TD) and (residual_TD is None or _surely_sound(residual_TD)):
        return
    stream_TD = hidden_TD.float() if residual_TD is None else hidden_TD.float() + residual_TD.float()
    broken_T = ~(stream_TD.abs().amax(dim=1) <= state_limit(hidden_TD.dtype))  # true for NaN
    # Row 0 counts for no request: clearing its states would turn log-probabilities that are errors into numbers.
    broken_T &= state.token_rows_T[: len(broken_T)] != 0
    tokens_N = broken_T.nonzero().squeeze(1)
    hidden_TD[tokens_N] = 0
    _count(state.broken_LR[state.last_layer], state.token_rows_T[tokens_N], torch.ones_like(tokens_N))


def _surely_sound(half_TD: torch.Tensor) -> bool:
    """Return whether the sum of all squares shows that no element is large, in a third of the time of a full check."""
    flat = half_TD.reshape(-1)
    return half_TD.dtype == torch.float32 and torch.dot(flat, flat).item() <= (state_limit(half_TD.dtype) / 2) ** 2


def _add(hidden_TD: torch.Tensor, state: SteeringState, layer: int, work: LayerWork) -> None:
    """Apply one vector per token, the common case, which does not read the residual stream."""
    assert work.additions_N is not None and work.addition_rows_N is not None
    before_ND = hidden_TD.index_select(0, work.additions_N)
    after_ND = (before_ND + work.delta(state, layer)).to(hidden_TD.dtype)  # rounded once, from float32
    assert work.met_N is not None
    _write(hidden_TD, state, layer, (work.additions_N, work.addition_rows_N), before_ND, after_ND, work.met_N)


def _edit(
    hidden_TD: torch.Tensor, residual_TD: torch.Tensor | None, state: SteeringState, layer: int, work: LayerWork
) -> None:
    """Apply all other edits, in float32 on the residual stream."""
    assert work.general_N is not None and work.general_rows_N is not None
    rows_N = work.general_rows_N
    before_ND = hidden_TD.index_select(0, work.general_N)
    delta_ND, met_N = edit_stream(
        _stream(hidden_TD, residual_TD, work.general_N),
        state.table_SD,
        state.slots_LER[layer].index_select(1, rows_N),
        state.operations_LER[layer].index_select(1, rows_N),
        state.coefficients_LER[layer].index_select(1, rows_N),
    )
    spared_N = None
    if work.conditional_N is not None:
        is_spared_N = work.conditional_N & (state.spared_T.index_select(0, work.general_N) != 0)
        delta_ND, met_N = delta_ND.masked_fill(is_spared_N.unsqueeze(1), 0), met_N & ~is_spared_N
        spared_N = is_spared_N.to(torch.int32)
    after_ND = (before_ND.float() + delta_ND).to(hidden_TD.dtype)
    _write(hidden_TD, state, layer, (work.general_N, rows_N), before_ND, after_ND, met_N.to(torch.int32), spared_N)


def _decide(
    hidden_TD: torch.Tensor, residual_TD: torch.Tensor | None, state: SteeringState, conditions: LayerConditions
) -> None:
    """Write at which tokens a condition does not hold. It holds at no token whose projection is NaN."""
    projections_N = _projections(hidden_TD, residual_TD, conditions.tokens_N, conditions.units_ND)
    holds_N = conditions.signs_N * projections_N > conditions.signs_N * conditions.thresholds_N
    state.spared_T.index_copy_(0, conditions.tokens_N, (~holds_N).to(torch.int32))


def _read(hidden_TD: torch.Tensor, residual_TD: torch.Tensor | None, state: SteeringState, reads: LayerReads) -> None:
    """Write the projection of the residual stream on each direction that is read along, and each state to keep."""
    if len(reads.tokens_N):
        projections_N = _projections(hidden_TD, residual_TD, reads.tokens_N, reads.units_ND)
        state.scores_TK.view(-1).index_copy_(0, reads.places_N, projections_N)
    if len(reads.kept_N):
        kept_ND = _stream(hidden_TD, residual_TD, reads.kept_N).to(state.states_TD.dtype)
        state.states_TD.index_copy_(0, reads.kept_N, kept_ND)


def _projections(
    hidden_TD: torch.Tensor, residual_TD: torch.Tensor | None, tokens_N: torch.Tensor, units_ND: torch.Tensor
) -> torch.Tensor:
    """Return the projection of the residual stream of tokens on directions, in float32."""
    return torch.linalg.vecdot(_stream(hidden_TD, residual_TD, tokens_N), units_ND)


def _stream(hidden_TD: torch.Tensor, residual_TD: torch.Tensor | None, tokens_N: torch.Tensor) -> torch.Tensor:
    """Return the residual stream of tokens, in float32."""
    stream_ND = hidden_TD.index_select(0, tokens_N).float()
    return stream_ND if residual_TD is None else stream_ND + residual_TD.index_select(0, tokens_N).float()


def _write(
    hidden_TD: torch.Tensor, state: SteeringState, layer: int, tokens_and_rows: tuple[torch.Tensor, torch.Tensor],
    before_ND: torch.Tensor, after_ND: torch.Tensor, met_N: torch.Tensor, spared_N: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Write edited tokens, and count changed, met and spared ones; a broken one is set to zero and counted."""
    tokens_N, rows_N = tokens_and_rows
    gaps_N = (after_ND - before_ND).abs_().amax(dim=1)  # NaN where one of both is: comparisons with it are false
    least, most = torch.aminmax(gaps_N)
    sound = most.item() <= state_limit(hidden_TD.dtype)  # devices on which asking would wait have a kernel
    if not sound:
        broken_N = ~(gaps_N <= state_limit(hidden_TD.dtype))
        gaps_N, after_ND = gaps_N.masked_fill(broken_N, 0), after_ND.masked_fill(broken_N.unsqueeze(1), 0)
        _count(state.broken_LR[layer], rows_N, broken_N)
    hidden_TD.index_copy_(0, tokens_N, after_ND)
    changed_N = torch.ones_like(met_N) if sound and least.item() > 0 else gaps_N > 0
    _count(state.changed_LR[layer], rows_N, changed_N)
    _count(state.applied_LR[layer], rows_N, met_N)
    latest_RP = state.latest_LRP[layer]
    places_N = rows_N % len(latest_RP) * latest_RP.shape[1] + state.token_places_T.index_select(0, tokens_N)
    flags_N = CHANGED * changed_N.to(torch.int32) + APPLIED * met_N
    if spared_N is not None:
        _count(state.spared_LR[layer], rows_N, spared_N)
        flags_N += SPARED * spared_N
    latest_RP.view(-1).index_copy_(0, places_N, flags_N.to(torch.uint8))


def _count(counts_R: torch.Tensor, rows_N: torch.Tensor, flags_N: torch.Tensor) -> None:
    counts_R.index_add_(0, rows_N, flags_N.to(torch.int32))


_STATE: list[SteeringState] = []


def bind(state: SteeringState) -> None:
    """Set the state that the op of this process uses."""
    _STATE[:] = [state]


@torch.library.custom_op("poolbench_steerer::steer", mutates_args=("hidden_TD",))
def steer(hidden_TD: torch.Tensor, residual_TD: torch.Tensor | None, layer: int) -> None:
    """Steer `hidden_TD` in place; opaque to torch.compile, which would otherwise trace state away."""
    steer_tokens(hidden_TD, residual_TD, _STATE[0], layer)


@steer.register_fake
def _(hidden_TD: torch.Tensor, residual_TD: torch.Tensor | None, layer: int) -> None:
    return None


def steer_output(layer: int, *, fused: bool = True) -> Any:
    """Return a forward hook for block `layer`.

    A block returns its output, or the fused pair (output, residual) whose sum is the residual stream. Changing
    the first changes the sum exactly once. Without `fused`, the first of a pair is the whole stream.
    """

    def hook(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        hidden, residual = halves(output, fused=fused)
        if torch.compiler.is_compiling():
            torch.ops.poolbench_steerer.steer(hidden, residual, layer)
        else:  # no compiler to hide the state from, and an op call may cost more than a layer's steering
            steer_tokens(hidden, residual, _STATE[0], layer)

    return hook


def halves(output: Any, *, fused: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Split the output of a block into two parts whose sum is the residual stream.

    If the first part is the whole stream, the second part is None.
    """
    hidden, residual = (*output, None)[:2] if isinstance(output, tuple) else (output, None)
    return hidden, residual if fused else None


_PRESERVING = OPERATION_CODES["add_preserving_norm"]
_CLAMP = OPERATION_CODES["clamp"]
_ERASE = OPERATION_CODES["erase"]


def edit_stream(
    stream_ND: torch.Tensor,
    table_SD: torch.Tensor,
    slots_EN: torch.Tensor,
    operations_EN: torch.Tensor,
    coefficients_EN: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the change of each token's residual stream by its edits, applied one after the other.

    Args:
        stream_ND: float32 residual stream of N tokens.
        table_SD: float32 vectors by slot.
        slots_EN, operations_EN, coefficients_EN: Edit e of token n, where operation 0 means no edit.

    Returns:
        The change, float32 [N, D], and whether every edit of a token had a vector that is not zero and gave a
        finite result, bool [N]. The sum of the additions is exact: it is never rounded to the stream's scale.
    """
    delta_ND = torch.zeros_like(stream_ND)
    met_N = torch.ones(len(stream_ND), dtype=torch.bool, device=stream_ND.device)
    for slots_N, operations_N, coefficients_N in zip(slots_EN, operations_EN, coefficients_EN, strict=True):
        vectors_ND = table_SD.index_select(0, slots_N)
        squares_N = (vectors_ND * vectors_ND).sum(dim=1)
        factors_N = _factors(stream_ND + delta_ND, vectors_ND, squares_N, operations_N, coefficients_N)
        added_ND = delta_ND + factors_N.unsqueeze(1) * vectors_ND
        delta_ND = _with_norm(stream_ND, delta_ND, added_ND, operations_N == _PRESERVING)
        met_N &= (operations_N == 0) | (squares_N > 0)
    return delta_ND, met_N & (delta_ND.abs().amax(dim=1) < torch.inf)


def _factors(
    stream_ND: torch.Tensor,
    vectors_ND: torch.Tensor,
    squares_N: torch.Tensor,
    operations_N: torch.Tensor,
    coefficients_N: torch.Tensor,
) -> torch.Tensor:
    """Return how much of its vector each token gets; 0 for a vector that is zero."""
    dots_N = (stream_ND * vectors_ND).sum(dim=1)
    safe_N = squares_N.clamp_min(torch.finfo(torch.float32).tiny)
    clamped_N = (coefficients_N * squares_N.sqrt() - dots_N) / safe_N
    erased_N = -coefficients_N * dots_N / safe_N
    projected_N = torch.where(operations_N == _CLAMP, clamped_N, erased_N)
    return torch.where(operations_N >= _CLAMP, projected_N, coefficients_N)


def _with_norm(
    stream_ND: torch.Tensor, before_ND: torch.Tensor, after_ND: torch.Tensor, preserving_N: torch.Tensor
) -> torch.Tensor:
    """Return the change after an edit; to preserve the norm, the edited stream is scaled back to it."""
    norms_N = torch.linalg.vector_norm(stream_ND + before_ND, dim=1)
    edited_ND = stream_ND + after_ND
    scales_N = norms_N / torch.linalg.vector_norm(edited_ND, dim=1).clamp_min(torch.finfo(torch.float32).tiny)
    return torch.where(preserving_N.unsqueeze(1), edited_ND * scales_N.unsqueeze(1) - stream_ND, after_ND)
