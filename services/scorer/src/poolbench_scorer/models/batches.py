"""Windows of tokens, batched by length so that little is padded."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Window = tuple[int, ...]


def length_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices grouped so that a batch holds at most ``max_tokens`` after padding, shortest first.

    Equal lengths keep their order, so the batches are a function of the lengths alone.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda position: (lengths[position], position)):
        if batches and (len(batches[-1]) + 1) * lengths[index] <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def pad_ids(windows: Sequence[Window], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids [B, T] padded on the right with 0, and the mask of real positions [B, T]."""
    longest = max(map(len, windows))
    ids_BT = torch.zeros(len(windows), longest, dtype=torch.long)
    mask_BT = torch.zeros(len(windows), longest, dtype=torch.bool)
    for row, window in enumerate(windows):
        ids_BT[row, : len(window)] = torch.tensor(window)
        mask_BT[row, : len(window)] = True
    return ids_BT.to(device), mask_BT.to(device)


def pad_states(states: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Cached states [T_i, D] as one batch [B, T, D] with its mask [B, T]."""
    longest = max(map(len, states))
    hidden_BTD = states[0].new_zeros(len(states), longest, states[0].shape[1])
    mask_BT = torch.zeros(len(states), longest, dtype=torch.bool, device=hidden_BTD.device)
    for row, state in enumerate(states):
        hidden_BTD[row, : len(state)] = state
        mask_BT[row, : len(state)] = True
    return hidden_BTD, mask_BT
