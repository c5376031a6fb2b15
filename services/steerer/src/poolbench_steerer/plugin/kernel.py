"""Steering on GPUs: one kernel per layer, captured once in a CUDA graph for all requests.

There is one program per token. It reads the token's row and returns at once where there is none, so that a layer
without edits and readings costs one launch; otherwise it applies the row's edits in registers, exactly as `arithmetic`
does, writes and counts the result, projects it on the directions that the row reads along, and keeps it for a row that
is pooled. Behind the last block it checks every token that a request owns: a state that broke is counted and set to
zero, as after each edit. The host is not involved.
"""

import torch
import triton
import triton.language as tl

from poolbench_steerer.plugin.rows import NUM_LATEST
from poolbench_steerer.plugin.spec import MAX_READINGS, OPERATION_CODES
from poolbench_steerer.plugin.state import APPLIED, CHANGED, SPARED, SteeringState, state_limit

_PRESERVING = tl.constexpr(OPERATION_CODES["add_preserving_norm"])
_CLAMP = tl.constexpr(OPERATION_CODES["clamp"])
_READINGS = tl.constexpr(MAX_READINGS)
_LATEST = tl.constexpr(NUM_LATEST)
_CHANGED, _APPLIED, _SPARED = tl.constexpr(CHANGED), tl.constexpr(APPLIED), tl.constexpr(SPARED)
_TINY = tl.constexpr(float(torch.finfo(torch.float32).tiny))


def steer_on_gpu(hidden_TD: torch.Tensor, residual_TD: torch.Tensor | None, state: SteeringState, layer: int) -> None:
    """Steer all tokens at `layer` in place, count changed and fully edited tokens, and compute the readings."""
    num_tokens, width = hidden_TD.shape
    if num_tokens == 0:
        return
    fused = residual_TD is not None
    other = residual_TD if residual_TD is not None else hidden_TD
    assert hidden_TD.stride(1) == 1 and other.stride(1) == 1
    _, num_edits, num_rows = state.slots_LER.shape
    block = triton.next_power_of_2(width)
    _steer_token[(num_tokens,)](
        hidden_TD, other, state.token_rows_T, state.token_places_T, state.table_SD,
        state.slots_LER[layer], state.operations_LER[layer], state.coefficients_LER[layer],
        state.changed_LR[layer], state.applied_LR[layer], state.broken_LR[layer],
        state.latest_LRP[layer], state.readings_LKR[layer], state.scores_TK, state.states_TD,
        state.condition_slots_L1R[layer], state.conditions_21R, state.spared_LR[layer], state.spared_T,
        width, num_rows, state.rows.num_rows, hidden_TD.stride(0), other.stride(0), state_limit(hidden_TD.dtype),
        FUSED=fused, LAST=layer == state.last_layer, NUM_EDITS=num_edits, BLOCK=block,
        num_warps=min(max(block // 512, 1), 16),
    )  # fmt: skip


@triton.jit
def _steer_token(  # type: ignore[no-untyped-def]
    hidden, residual, token_rows, token_places, table, slots, operations, coefficients, changed, applied, broken,
    latest, readings, scores, states, condition_slots, conditions, spared, token_spared,
    width, num_rows, num_owners, hidden_stride, residual_stride, limit,
    FUSED: tl.constexpr, LAST: tl.constexpr, NUM_EDITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(token_rows + token)
    first = tl.load(operations + row)  # edits fill a row from its front: 0 if this token has none at this layer
    reads = tl.load(readings + row)  # likewise
    condition = tl.load(condition_slots + row)  # the slot of the vector that decides about this token, read here
    concerned = row if LAST else first | reads | condition
    if concerned == 0:
        return
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    place = hidden + token * hidden_stride + columns
    before = tl.load(place, mask=inside, other=0.0)
    other = tl.zeros([BLOCK], dtype=tl.float32)
    if FUSED:
        other = tl.load(residual + token * residual_stride + columns, mask=inside, other=0.0).to(tl.float32)
    stream = before.to(tl.float32) + other
    sign = tl.load(conditions + row)  # 0 if the edits of this token apply at any state
    is_spared = tl.where(sign != 0, tl.load(token_spared + token), 0)
    if condition != 0:
        decisive = tl.load(table + condition * width + columns, mask=inside, other=0.0)
        projection = tl.sum(stream * decisive, axis=0) / tl.sqrt(tl.maximum(tl.sum(decisive * decisive, axis=0), _TINY))
        is_spared = tl.where(sign * projection > sign * tl.load(conditions + num_rows + row), 0, 1)
        tl.store(token_spared + token, is_spared)
    delta, met = _change(stream, row, table, slots, operations, coefficients, width, num_rows, NUM_EDITS, BLOCK)
    delta = tl.where(is_spared != 0, 0.0, delta)
    after = (before.to(tl.float32) + delta).to(before.dtype)
    gap = tl.abs(after.to(tl.float32) - before.to(tl.float32))
    overdone = tl.where(first != 0, _any_not(gap <= limit), 0)
    unsound = overdone
    if LAST:
        unsound = tl.maximum(overdone, _any_not(tl.abs(after.to(tl.float32) + other) <= limit))
    if unsound != 0:
        tl.store(place, tl.zeros([BLOCK], dtype=tl.float32).to(before.dtype), mask=inside)
        tl.atomic_add(broken + row, 1)
    elif first != 0:
        tl.store(place, after, mask=inside)
    if first != 0:
        is_changed = tl.where(overdone == 0, tl.max((gap > 0).to(tl.int32), axis=0), 0)
        is_applied = tl.where((_any_not(tl.abs(delta) < float("inf")) == 0) & (is_spared == 0), met, 0)
        tl.atomic_add(changed + row, is_changed)
        tl.atomic_add(applied + row, is_applied)
        tl.atomic_add(spared + row, is_spared)
        latest_place = row % num_owners * _LATEST + tl.load(token_places + token)
        tl.store(latest + latest_place, is_changed * _CHANGED + is_applied * _APPLIED + is_spared * _SPARED)
    if reads != 0:
        _read(after.to(tl.float32) + other, row, token, table, readings, scores, states, width, num_rows, BLOCK)


@triton.jit
def _read(  # type: ignore[no-untyped-def]
    stream, row, token, table, readings, scores, states, width, num_rows, BLOCK: tl.constexpr
):
    columns = tl.arange(0, BLOCK)
    for place in tl.static_range(_READINGS):
        code = tl.load(readings + place * num_rows + row)
        if code < 0:
            tl.store(states + token * width + columns, stream.to(states.dtype.element_ty), mask=columns < width)
        if code > 0:
            vector = tl.load(table + (code // _READINGS) * width + columns, mask=columns < width, other=0.0)
            norm = tl.sqrt(tl.maximum(tl.sum(vector * vector, axis=0), _TINY))
            tl.store(scores + token * _READINGS + code % _READINGS, tl.sum(stream * vector, axis=0) / norm)


@triton.jit
def _any_not(condition):  # type: ignore[no-untyped-def]
    # Comparisons with NaN are false, but not each way of taking a maximum keeps NaN: so look for what does not hold.
    return tl.max(condition.to(tl.int32) ^ 1, axis=0)


@triton.jit
def _change(  # type: ignore[no-untyped-def]
    stream, row, table, slots, operations, coefficients, width, num_rows, NUM_EDITS: tl.constexpr, BLOCK: tl.constexpr
):
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    delta = tl.zeros([BLOCK], dtype=tl.float32)
    met = 1
    for edit in tl.static_range(NUM_EDITS):
        operation = tl.load(operations + edit * num_rows + row)
        if operation != 0:
            slot = tl.load(slots + edit * num_rows + row)
            coefficient = tl.load(coefficients + edit * num_rows + row)
            vector = tl.load(table + slot * width + columns, mask=inside, other=0.0)
            square = tl.sum(vector * vector, axis=0)
            current = stream + delta
            factor = coefficient
            if operation >= _CLAMP:
                dot = tl.sum(current * vector, axis=0)
                numerator = tl.where(operation == _CLAMP, coefficient * tl.sqrt(square) - dot, -coefficient * dot)
                factor = numerator / tl.maximum(square, _TINY)
            delta += factor * vector
            if operation == _PRESERVING:
                edited = stream + delta
                norm = tl.sqrt(tl.sum(current * current, axis=0))
                delta = edited * (norm / tl.maximum(tl.sqrt(tl.sum(edited * edited, axis=0)), _TINY)) - stream
            met = tl.where(square > 0, met, 0)
    return delta, met
