"""The edits of the residual stream as plain arithmetic: float32 tensors in, the change out."""

from __future__ import annotations

import torch

from poolbench_steerer.plugin.spec import OPERATION_CODES

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
    """Return what the edits of each token add to its residual stream, applied one after the other.

    Args:
        stream_ND: float32 residual stream of N tokens.
        table_SD: float32 vectors by slot.
        slots_EN, operations_EN, coefficients_EN: Edit e of token n; operation 0 is none.

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
