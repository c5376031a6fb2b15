"""The compared methods from tokens to pooled vectors: plain forward, ours, and the reference code."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from poolbench.pooling import Reduction, TokenContext, Weights
from poolbench.pooling.batch import Request
from poolbench.pooling.registry import strategies_of
from poolbench.pooling.signals import from_source
from poolbench.storage.artifacts import table_to_bytes
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.core import extract
from poolbench_extractor.encode import Encoded, Reading
from poolbench_extractor.forward.batching import make_batches
from poolbench_extractor.forward.capture import capture
from poolbench_extractor.models.decoder import Decoder

#: Passages of a batch in the reference's code.
REFERENCE_BATCH = 8


@dataclass(frozen=True)
class Workload:
    """Inputs of every method: model, passages, layers, batch sizes."""

    decoder: Decoder
    passages: Sequence[Encoded]
    layers: Sequence[int]
    limits: BatchLimits

    @property
    def num_tokens(self) -> int:
        """Return the positions of all passages."""
        return sum(passage.num_positions for passage in self.passages)

    def first(self, num: int) -> Workload:
        """Return the same work on the first `num` passages."""
        return Workload(self.decoder, self.passages[:num], self.layers, self.limits)


def requests_of(board: Any = "card", *, gradient: bool = False) -> tuple[Request, ...]:
    """Return every strategy of a board that needs no labels; those that need the loss only with `gradient`."""
    cheap = {"annotation", *from_source("states", ("norms",)), *from_source("attention", ("inflow",))}
    allowed = cheap | set(from_source("loss", ("gradient", "gradient_dot")) if gradient else ())
    return tuple(Request.of(spec.id) for spec in strategies_of(board) if allowed.issuperset(spec.needs))


def plain(work: Workload) -> None:
    """Run the same batches to the deepest layer, without language-model head, keeping one layer's states."""
    for batch in make_batches(work.passages, work.limits):
        capture(work.decoder, batch, [max(work.layers)])


def ours(work: Workload, requests: Sequence[Request]) -> dict[str, pa.Table]:
    """Run the forward pass and all strategies at all layers, and make the tables."""
    requests_by_layer = dict.fromkeys(work.layers, tuple(requests))
    return extract(work.decoder, work.passages, requests_by_layer, reading=Reading(limits=work.limits))


def ours_written(work: Workload, requests: Sequence[Request], folder: Path) -> int:
    """Run `ours`, write the tables as the object store gets them, and return the number of bytes."""
    total = 0
    for role, table in ours(work, requests).items():
        data = table_to_bytes(table)
        (folder / f"{role.replace('/', '_')}.arrow").write_bytes(data)
        total += len(data)
    return total


@dataclass(frozen=True)
class Reference:
    """Eager attention at all layers, states copied to the host as float32, then one strategy at a time in NumPy.

    It runs the whole model, head included, because the reference does. As in the reference, the
    attention is averaged over queries. Its linguistic strategies read the same annotation as ours.

    Attributes:
        batch: Passages of a forward pass.
        every_layer: Whether states and attention of all layers are copied, or of the requested ones.
        folder: Folder of its `.npy` files, one per layer, object arrays of one dictionary per passage with states
            and inflow in float16; they are read back once, before pooling. None keeps all in memory.
    """

    batch: int
    every_layer: bool
    folder: Path | None = None

    def __call__(self, work: Workload, requests: Sequence[Request]) -> None:
        """Apply all strategies at all layers to every passage."""
        with eager(work.decoder):
            records = self._extract(work)
        for layer in work.layers:
            for passage, record in zip(work.passages, self._travelled(layer, records[layer]), strict=True):
                pool_one_by_one(passage.context, record, requests)

    def _extract(self, work: Workload) -> dict[int, list[dict[str, Any]]]:
        """Return every passage's record by layer: `hidden` [T, D] and `inflow` [H, T], of any float type."""
        layers = range(work.decoder.num_blocks) if self.every_layer else work.layers
        records: dict[int, list[dict[str, Any]]] = {layer: [] for layer in layers}
        for start in range(0, len(work.passages), self.batch):
            batch = work.passages[start : start + self.batch]
            for layer, record in self._forward(work.decoder, batch, layers):
                records[layer].append(record)
        return records

    @torch.inference_mode()
    def _forward(
        self, decoder: Decoder, batch: Sequence[Encoded], kept: Iterable[int]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        longest = max(passage.num_positions for passage in batch)
        starts = [longest - passage.num_positions for passage in batch]
        ids, mask = np.zeros((2, len(batch), longest), dtype=np.int64)
        for row, (passage, start) in enumerate(zip(batch, starts, strict=True)):
            ids[row, start:], mask[row, start:] = passage.token_ids, 1
        with ExitStack() as stack:
            hidden = {layer: stack.enter_context(_to_host(decoder.blocks[layer])) for layer in kept}
            output = decoder.model(
                input_ids=torch.from_numpy(ids).to(decoder.device),
                attention_mask=torch.from_numpy(mask).to(decoder.device),
                output_attentions=True,
            )
        for layer in kept:
            (h_BTD,) = hidden[layer]
            attention_BHTT = output.attentions[layer].float().cpu().numpy()
            for row, start in enumerate(starts):
                inflow_HT = attention_BHTT[row, :, start:, start:].mean(axis=1)
                yield layer, self._record(h_BTD[row, start:], inflow_HT)

    def _record(self, h_TD: np.ndarray, inflow_HT: np.ndarray) -> dict[str, Any]:
        if self.folder is None:
            return {"hidden": h_TD, "inflow": inflow_HT}
        return {"hidden": h_TD.astype(np.float16), "inflow": inflow_HT.astype(np.float16)}

    def _travelled(self, layer: int, records: list[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        if self.folder is None:
            return records
        path = self.folder / f"layer_{layer}.npy"
        array = np.empty(len(records), dtype=object)
        array[:] = records
        np.save(path, array)
        return np.load(io.BytesIO(path.read_bytes()), allow_pickle=True)  # written a moment ago, by us


@contextmanager
def _to_host(block: nn.Module) -> Iterator[list[np.ndarray]]:
    """Copy each output [B, T, D] of a block to the host inside the block.

    The model's own list of hidden states would give the last block's behind the final norm.
    """
    outputs: list[np.ndarray] = []

    def keep(_module: nn.Module, _args: Any, output: Any) -> None:
        outputs.append((output[0] if isinstance(output, tuple) else output).float().cpu().numpy())

    handle = block.register_forward_hook(keep)
    try:
        yield outputs
    finally:
        handle.remove()


@contextmanager
def eager(decoder: Decoder) -> Iterator[None]:
    """Switch the model to its eager attention inside the block."""
    fast = decoder.model.config._attn_implementation
    decoder.model.set_attn_implementation("eager")
    try:
        yield
    finally:
        decoder.model.set_attn_implementation(fast)


def pool_one_by_one(context: TokenContext, record: dict[str, Any], requests: Sequence[Request]) -> list[np.ndarray]:
    """Pool one passage at one layer with every strategy on its own, in NumPy."""
    h_TD = record["hidden"].astype(np.float32)
    norms, inflow = np.linalg.norm(h_TD, axis=1), record["inflow"].astype(np.float32).mean(axis=0)
    at_layer = context.at_layer({"norms": norms, "inflow": inflow})
    return [_pool(h_TD, request, at_layer) for request in requests]


def _pool(h_TD: np.ndarray, request: Request, context: TokenContext) -> np.ndarray:
    outcome = request.outcome(context)
    if isinstance(outcome, Weights):
        return outcome.values.astype(np.float32) @ h_TD
    if isinstance(outcome, Reduction):
        return getattr(np, outcome.op)(h_TD[context.real], axis=0)
    assert isinstance(outcome, Exception)
    raise outcome
