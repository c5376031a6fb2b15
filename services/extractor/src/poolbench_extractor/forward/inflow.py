"""Attention inflow from the queries and keys of a layer. The T x T matrix exists only for a block of queries."""

import torch
from torch import Tensor

#: Queries of one block, and bytes that its scores may take. Small blocks skip the keys behind them.
BLOCK_QUERIES = 64
BLOCK_BYTES = 128 * 2**20


def attention_inflow(
    query_BHTd: Tensor,
    key_BKTd: Tensor,
    real_BT: Tensor,
    *,
    corrected: bool = True,
    mask: Tensor | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Return the position-corrected attention inflow of every token, per head.

    inflow[j] = sum over q >= j of (q + 1) A[q, j] / (T - j), with q and j counted over real tokens and each
    row of A normalised over real tokens. Uniform causal attention, A[q, j] = 1 / (q + 1), gives 1 everywhere. Without
    the factors, early tokens would have a larger inflow only because more queries see them.

    Args:
        query_BHTd: Queries as the attention uses them.
        key_BKTd: Keys. If heads share keys, K is smaller than H and divides H.
        real_BT: Which positions are real tokens.
        corrected: If False, return the mean of A[q, j] over all T queries, without the correction.
        mask: The model's own mask [B or 1, 1, T, T], either boolean or added to the scores. None means a causal mask.
        scaling: Factor on the scores. The default is the inverse square root of the head size.
        softcap: Value at which the model smoothly caps the scores, or None.

    Returns:
        Inflow, float32 [B, H, T]. It is zero at positions that are not real.

    Reference: PoolBench card, S1, which averages A over queries; the correction is ours.
    """
    B, H, T, d = query_BHTd.shape
    K = key_BKTd.shape[1]
    grouped_BKGTd = query_BHTd.reshape(B, K, H // K, T, d)
    rank_BT = real_BT.cumsum(1).float()  # 1-based, so it is q + 1
    row_weight_BT = rank_BT * real_BT if corrected else real_BT.float()
    if not key_BKTd.is_cuda:  # half precision only where a kernel sums and returns float32
        key_BKTd = key_BKTd.float()
    total_BHT = torch.zeros(B, H, T, device=query_BHTd.device)
    step = max(1, min(BLOCK_QUERIES, BLOCK_BYTES // (4 * B * H * T)))
    for start in range(0, T, step):
        stop = min(T, start + step)
        block = grouped_BKGTd[:, :, :, start:stop].reshape(B, K, -1, d)
        scores = _scores(block, key_BKTd[:, :, :stop]).mul_(d**-0.5 if scaling is None else scaling)
        scores_BHQT = _masked(scores.view(B, H, stop - start, stop), mask, real_BT, start, softcap)
        weight_BHQ = row_weight_BT[:, None, start:stop].expand(B, H, -1)
        attention = scores_BHQT.softmax(-1)
        total_BHT[:, :, :stop] += (weight_BHQ.unsqueeze(2) @ attention).squeeze(2)
    remaining_BT = rank_BT[:, -1:] - rank_BT + 1 if corrected else rank_BT[:, -1:].clamp(min=1)  # T - j, or T
    return total_BHT * (real_BT / remaining_BT).unsqueeze(1)


def _scores(query_BKQd: Tensor, key_BKTd: Tensor) -> Tensor:
    """Return products of queries and keys in float32, [B, K, Q, T].

    Half precision would round scores of 20 by up to 0.06, six per cent of the attention, and float16 overflows
    on models with large activations.
    """
    if key_BKTd.dtype == torch.float32:
        return query_BKQd.float() @ key_BKTd.transpose(2, 3)
    query, key = query_BKQd.flatten(0, 1), key_BKTd.flatten(0, 1)
    return torch.bmm(query, key.transpose(1, 2), out_dtype=torch.float32).unflatten(0, query_BKQd.shape[:2])


def _masked(scores_BHQT: Tensor, mask: Tensor | None, real_BT: Tensor, start: int, softcap: float | None) -> Tensor:
    """Return scores of one block of queries, very low where a query does not see a key or the key is not real."""
    num_queries, num_keys = scores_BHQT.shape[2:]
    if softcap is not None:
        scores_BHQT = torch.tanh(scores_BHQT / softcap) * softcap
    hidden = ~real_BT[:, None, None, :num_keys]
    if mask is None:
        query = torch.arange(start, start + num_queries, device=real_BT.device)
        key = torch.arange(num_keys, device=real_BT.device)
        hidden = hidden | (key > query[:, None])
    elif mask.dtype == torch.bool:
        hidden = hidden | ~mask[:, :, start : start + num_queries, :num_keys]
    else:
        scores_BHQT = scores_BHQT + mask[:, :, start : start + num_queries, :num_keys].float()
    # A finite floor: rows of padding see no real token, and their weight of zero must not meet a NaN.
    return scores_BHQT.masked_fill_(hidden, torch.finfo(torch.float32).min)
