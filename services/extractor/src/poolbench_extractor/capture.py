"""One forward pass to the deepest asked block, with hidden states and attention inflow of the asked ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from poolbench_extractor.encode import Encoded
from poolbench_extractor.inflow import attention_inflow, watching
from poolbench_extractor.model import Decoder


class _DeepEnoughError(Exception):
    """Ends a forward pass after the deepest asked block."""


@dataclass
class Captured:
    """What one batch left behind.

    Attributes:
        starts: First position of each passage in its padded row.
        lengths: Number of positions of each passage.
        states: Hidden states by layer, [B, T, D], on the layer's device.
        inflow: Attention inflow by layer, [B, H, T], where it was asked for and the model shows it.
    """

    starts: list[int]
    lengths: list[int]
    states: dict[int, Tensor] = field(default_factory=dict)
    inflow: dict[int, Tensor] = field(default_factory=dict)

    def states_of(self, layer: int) -> list[Tensor]:
        """Each passage's own states [T, D], without padding."""
        rows = zip(self.states[layer], self.starts, self.lengths, strict=True)
        return [h_TD[start : start + length] for h_TD, start, length in rows]

    def inflow_of(self, layer: int) -> list[np.ndarray] | None:
        """Each passage's inflow, mean over heads, [T]; None where it was not captured."""
        if layer not in self.inflow:
            return None
        mean_BT = self.inflow[layer].mean(1).double().cpu().numpy()
        rows = zip(mean_BT, self.starts, self.lengths, strict=True)
        return [flow[start : start + length] for flow, start, length in rows]


@torch.inference_mode()
def capture(
    decoder: Decoder,
    batch: Sequence[Encoded],
    layers: Sequence[int],
    *,
    inflow_layers: Sequence[int] = (),
    padding_side: str = "right",
) -> Captured:
    """Runs the model on a batch up to the deepest of ``layers``.

    Args:
        decoder: The model.
        batch: Passages that fit its window.
        layers: Blocks whose output is kept.
        inflow_layers: Blocks whose attention inflow is computed; a subset of ``layers``.
        padding_side: ``right`` or ``left``; changes nothing but rounding.
    """
    inputs, captured, real_BT = _padded(decoder, batch, padding_side)
    with ExitStack() as stack:
        stack.enter_context(decoder.lock)
        for layer in layers:
            stack.enter_context(_keeping(decoder.blocks[layer], layer, captured, layer == max(layers)))
        watchers: dict[nn.Module, Any] = {}
        for layer in inflow_layers:
            watch = partial(_keep_inflow, captured, layer, real_BT)
            watchers |= dict.fromkeys(decoder.blocks[layer].modules(), watch)
        stack.enter_context(watching(watchers))
        with suppress(_DeepEnoughError):
            decoder.backbone(**inputs, use_cache=False)
    return captured


def _padded(
    decoder: Decoder, batch: Sequence[Encoded], padding_side: str
) -> tuple[dict[str, Tensor], Captured, Tensor]:
    """Model inputs, the places of the passages in them, and the mask of real tokens.

    Padding on the right needs no mask under causal attention: nothing looks ahead.
    """
    lengths = [passage.num_positions for passage in batch]
    T = max(lengths)
    starts = [T - length if padding_side == "left" else 0 for length in lengths]
    shape = (len(batch), T)
    ids, real, visible = np.zeros(shape, np.int64), np.zeros(shape, bool), np.zeros(shape, np.int64)
    for row, (passage, start, length) in enumerate(zip(batch, starts, lengths, strict=True)):
        place = (row, slice(start, start + length))
        ids[place] = passage.token_ids
        real[place] = ~passage.context.special
        visible[place] = 1
    inputs = {"input_ids": ids}
    if padding_side == "left":
        inputs["attention_mask"] = visible
        if decoder.accepts_positions:
            inputs["position_ids"] = np.maximum(visible.cumsum(1) - 1, 0)
    on_device = {name: torch.from_numpy(value).to(decoder.device) for name, value in inputs.items()}
    return on_device, Captured(starts, lengths), torch.from_numpy(real)


@contextmanager
def _keeping(block: nn.Module, layer: int, captured: Captured, deepest: bool) -> Iterator[None]:
    def keep(_module: nn.Module, _args: Any, output: Any) -> None:
        captured.states[layer] = output[0] if isinstance(output, tuple) else output
        if deepest:
            raise _DeepEnoughError

    handle = block.register_forward_hook(keep)
    try:
        yield
    finally:
        handle.remove()


def _keep_inflow(captured: Captured, layer: int, real_BT: Tensor, query: Tensor, key: Tensor, **settings: Any) -> None:
    captured.inflow[layer] = attention_inflow(query, key, real_BT.to(query.device), **settings)
