"""Forward pass up to the deepest requested block, which captures states and signals of the requested layers.

`resumed` runs the remaining blocks.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from poolbench.config import EMBEDDING_INDEX
from poolbench.errors import CellError
from poolbench.pooling.batch import find_sinks
from poolbench.pooling.signals import Signals, from_source
from poolbench.pooling.sinks import LEAVE_OUT, SinkRule
from poolbench.pooling.transfers import HostCopy, to_device
from poolbench.statuses import Status
from poolbench_extractor.encode import Encoded
from poolbench_extractor.erasing import Erased, with_states
from poolbench_extractor.forward import gradients
from poolbench_extractor.forward.batching import is_out_of_memory
from poolbench_extractor.forward.inflow import attention_inflow
from poolbench_extractor.models.attention import watching
from poolbench_extractor.models.decoder import Decoder

#: Signals made from the attention inflow of every head, [B, H, T], and whether it is corrected for position.
OF_INFLOW: dict[str, tuple[bool, Callable[[Tensor], Tensor]]] = {
    "inflow": (True, lambda flow_BHT: flow_BHT.mean(1)),
    "head_inflow": (True, lambda flow_BHT: flow_BHT),
    "received": (False, lambda flow_BHT: flow_BHT.mean(1)),
}


class _DeepEnoughError(Exception):
    """Ends a forward pass after the deepest requested block."""


@dataclass
class Captured:
    """States and signals of one batch.

    Attributes:
        starts: First position of each passage in its padded row.
        inputs: Arguments of the model's forward pass.
        states: Hidden states by layer, [B, T, D], on the layer's device.
        outputs: By layer, the object that holds its states: the output of its module, or the input of the first block.
        signals: Signals by layer and name on their way to the host, [B, T] or [B, H, T].
        refused: For each passage, the errors of the signals that it lacks, by signal name.
        inflow: By layer, a function that returns the attention inflow of every head [B, H, T]. Its arguments are the
            mask of tokens that count [B, T] and whether to correct for position. An entry exists only while the
            layer's block runs, because the output of the block decides which tokens are sinks.
        absent: By layer, the errors of the signals that the layer cannot give, by signal name.
    """

    starts: list[int]
    lengths: list[int]
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    states: dict[int, Tensor] = field(default_factory=dict)
    outputs: dict[int, Any] = field(default_factory=dict)
    signals: dict[int, dict[str, HostCopy]] = field(default_factory=dict)
    refused: list[dict[str, CellError]] = field(init=False)
    inflow: dict[int, Callable[[Tensor, bool], Tensor]] = field(default_factory=dict)
    absent: dict[int, dict[str, CellError]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.refused = [{} for _ in self.lengths]

    def states_of(self, layer: int) -> list[Tensor]:
        """Return each passage's own states [T, D], without padding."""
        rows = zip(self.states[layer], self.starts, self.lengths, strict=True)
        return [h_TD[start : start + length] for h_TD, start, length in rows]

    def signals_of(self, layer: int) -> list[Signals]:
        """Wait for each passage's signals, and return them by name, [T] or [H, T], without padding.

        A signal that the passage or the layer lacks is a CellError.
        """
        arrays = {name: value.wait().double().numpy() for name, value in self.signals.get(layer, {}).items()}
        absent = self.absent.get(layer, {})
        return [
            {**{name: value[row, ..., start : start + length] for name, value in arrays.items()}, **refused, **absent}
            for row, (start, length, refused) in enumerate(zip(self.starts, self.lengths, self.refused, strict=True))
        ]

    def refuse(self, names: Collection[str], error: CellError) -> None:
        """Mark these signals as missing for every passage."""
        for row in self.refused:
            row.update(dict.fromkeys(names, error))


def capture(
    decoder: Decoder,
    batch: Sequence[Encoded],
    layers: Sequence[int],
    *,
    signals: Mapping[int, Collection[str]] | None = None,
    sinks: SinkRule = LEAVE_OUT,
    padding_side: str = "right",
    erased: Erased | None = None,
) -> Captured:
    """Run the model on a batch up to the deepest of `layers`.

    If a signal needs the loss, the model runs to its head and the loss is propagated back.

    Args:
        batch: Passages that fit the model's window.
        layers: Layers whose states are kept: blocks, the embedding, or the states after the last norm.
        signals: Names of the signals that strategies need, by layer. Names of other sources are ignored.
        sinks: Which tokens are attention sinks, and whether the attention inflow leaves them out.
        padding_side: `right` or `left`. The side changes only rounding.
        erased: Directions to erase from the states of a layer while the model runs.

    Returns:
        States and signals. In place of each signal that the model cannot give, there is an error with a reason.
    """
    needs, absent = _of_blocks(decoder, signals or {})
    by_loss = {layer: names for layer, need in needs.items() if (names := from_source("loss", need))}
    refusal = gradients.obstacle(decoder) if by_loss else None
    if by_loss and refusal is None:
        try:
            return _capture(decoder, batch, layers, needs, by_loss, absent, sinks, padding_side, erased)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            refusal = CellError(Status.FAILED, f"{decoder.source} cannot be differentiated: {reason}")
    captured = _capture(decoder, batch, layers, needs, {}, absent, sinks, padding_side, erased)
    if refusal is not None:
        captured.refuse({name for names in by_loss.values() for name in names}, refusal)
    return captured


def _of_blocks(
    decoder: Decoder, signals: Mapping[int, Collection[str]]
) -> tuple[dict[int, Collection[str]], dict[int, dict[str, CellError]]]:
    """Split signals into the names that blocks give, and errors for layers that give no attention or gradient.

    Only blocks of causal decoders give signals of attention and gradients.
    """
    needs: dict[int, Collection[str]] = {}
    absent: dict[int, dict[str, CellError]] = {}
    for layer, names in signals.items():
        if decoder.causal and decoder.is_block(layer):
            needs[layer] = names
            continue
        where = (
            "at blocks only: name another layer"
            if decoder.causal
            else "in causal decoders only, and this is an encoder"
        )
        refusal = CellError(Status.NOT_IMPLEMENTED, f"attention and gradients are read {where}")
        absent[layer] = dict.fromkeys([*from_source("attention", names), *from_source("loss", names)], refusal)
    return needs, absent


def _capture(
    decoder: Decoder,
    batch: Sequence[Encoded],
    layers: Sequence[int],
    needs: Mapping[int, Collection[str]],
    by_loss: Mapping[int, Collection[str]],
    absent: dict[int, dict[str, CellError]],
    sinks: SinkRule,
    padding_side: str,
    erased: Erased | None,
) -> Captured:
    captured, real_BT = _padded(decoder, batch, padding_side)
    captured.absent = absent
    with ExitStack() as stack:
        stack.enter_context(decoder.lock)
        stack.enter_context(torch.enable_grad() if by_loss else torch.inference_mode())
        if erased is not None:  # before the hooks that keep states, which then see what is left
            stack.callback(decoder.on_states(erased.layer, erased.apply).remove)
        for layer in layers:
            last = layer == max(layers) and not by_loss
            finish = partial(_keep_inflow, captured, layer, needs.get(layer, ()), real_BT, sinks)
            stack.enter_context(_keeping(decoder, layer, captured, finish, last))
        stack.enter_context(_watching_attention(decoder, needs, captured))
        if by_loss:
            _run_with_loss(decoder, batch, by_loss, captured)
        else:
            with suppress(_DeepEnoughError):
                decoder.backbone(**captured.inputs, **({"use_cache": False} if decoder.causal else {}))
    return captured


def _run_with_loss(
    decoder: Decoder, batch: Sequence[Encoded], by_loss: Mapping[int, Collection[str]], captured: Captured
) -> None:
    tape = gradients.Tape()
    with tape.recording(decoder, sorted(by_loss)):
        decoder.backbone(**captured.inputs, use_cache=False)
    gradient_signals = gradients.signals_of(decoder, tape, gradients.Targets.of(batch, captured.starts))
    for layer, names in by_loss.items():
        copies = {name: HostCopy(gradient_signals[layer][name]) for name in names}
        captured.signals.setdefault(layer, {}).update(copies)
    for passage, refused in zip(batch, captured.refused, strict=True):
        error = gradients.obstacle_of(passage)
        if error is not None:
            refused |= {name: error for names in by_loss.values() for name in names}


def _padded(decoder: Decoder, batch: Sequence[Encoded], padding_side: str) -> tuple[Captured, Tensor]:
    """Return the padded inputs of a batch, and the mask of real tokens [B, T].

    Causal models need no attention mask for padding on the right.
    """
    lengths = [passage.num_positions for passage in batch]
    T = max(lengths)
    starts = [T - length if padding_side == "left" else 0 for length in lengths]
    shape = (len(batch), T)
    ids, real, visible = np.zeros(shape, np.int64), np.zeros(shape, bool), np.zeros(shape, np.int64)
    for row, (passage, start, length) in enumerate(zip(batch, starts, lengths, strict=True)):
        place = (row, slice(start, start + length))
        ids[place] = passage.token_ids
        real[place] = passage.context.of_text
        visible[place] = 1
    inputs = {"input_ids": ids}
    if padding_side == "left" or not decoder.causal:
        inputs["attention_mask"] = visible
        if padding_side == "left" and decoder.accepts_positions:
            inputs["position_ids"] = np.maximum(visible.cumsum(1) - 1, 0)
    on_device = {name: to_device(value, decoder.device) for name, value in inputs.items()}
    return Captured(starts, lengths, on_device), to_device(real, decoder.device)


def resumed(decoder: Decoder, captured: Captured, layer: int, h_BTD: Tensor) -> Any:
    """Run the decoder, without its head, from replaced states of a layer, and return its output.

    The blocks up to the layer do not run. The caller must hold the decoder's lock.

    Args:
        captured: Result of `capture` for the batch, with the states of the layer.
        h_BTD: States that replace `captured.states[layer]`. The captured states must not be changed in place.
    """
    answer = with_states(captured.outputs[layer], h_BTD)
    with ExitStack() as stack:
        if layer == EMBEDDING_INDEX:
            stack.callback(decoder.on_states(layer, lambda _: answer).remove)
        else:
            for module in [*decoder.blocks[:layer], decoder.module(layer)]:
                stack.enter_context(gradients.answering(module, answer))
        return decoder.backbone(**captured.inputs, use_cache=False)


@contextmanager
def _keeping(
    decoder: Decoder, layer: int, captured: Captured, finish: Callable[[], None], deepest: bool
) -> Iterator[None]:
    def keep(output: Any) -> None:
        if layer in captured.states:  # gradients ask the head again, which runs the decoder's hooks a second time
            return
        captured.outputs[layer] = output
        captured.states[layer] = (output if isinstance(output, Tensor) else output[0]).detach()
        finish()
        if deepest:
            raise _DeepEnoughError

    handle = decoder.on_states(layer, keep)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _watching_attention(decoder: Decoder, signals: Mapping[int, Collection[str]], captured: Captured) -> Iterator[None]:
    watchers: dict[nn.Module, Any] = {}
    for layer, needs in signals.items():
        names = from_source("attention", needs)
        if names and not decoder.observed:
            captured.refuse(names, CellError(Status.FAILED, f"the attention of {decoder.source} cannot be observed"))
        elif names:
            watch = partial(_remember_attention, captured, layer)
            watchers |= dict.fromkeys(decoder.blocks[layer].modules(), watch)
    with watching(watchers):
        yield


def _remember_attention(captured: Captured, layer: int, query: Tensor, key: Tensor, **settings: Any) -> None:
    captured.inflow[layer] = lambda counted_BT, corrected: attention_inflow(
        query.detach(), key.detach(), counted_BT.to(query.device), corrected=corrected, **settings
    )


@torch.no_grad()
def _keep_inflow(captured: Captured, layer: int, needs: Collection[str], real_BT: Tensor, sinks: SinkRule) -> None:
    """Compute the attention-inflow signals of a block that has run, over real tokens.

    Attention sinks are left out if the sink rule says so.
    """
    inflow = captured.inflow.pop(layer, None)
    if inflow is None:
        return
    states_BTD = captured.states[layer]
    counted_BT = real_BT.to(states_BTD.device)
    if sinks.leave_out:
        counted_BT = counted_BT & ~find_sinks(sinks, states_BTD.float().norm(dim=-1), counted_BT)
    names = from_source("attention", needs)
    flows = {corrected: inflow(counted_BT, corrected) for corrected in {OF_INFLOW[name][0] for name in names}}
    signals = captured.signals.setdefault(layer, {})
    for name in names:
        corrected, of_flow = OF_INFLOW[name]
        signals[name] = HostCopy(of_flow(flows[corrected]))
