"""Loss of the next token with other states in place of those of a layer."""

from __future__ import annotations

from contextlib import ExitStack
from copy import copy
from typing import Any

import torch
from torch import Tensor
from transformers.utils import ModelOutput

from poolbench.config import EMBEDDING_INDEX
from poolbench_extractor.forward.capture import Captured
from poolbench_extractor.forward.gradients import Targets, answering, head_losses
from poolbench_extractor.models.decoder import Decoder


@torch.inference_mode()
def losses_from(decoder: Decoder, captured: Captured, targets: Targets, layer: int, h_BTD: Tensor) -> Tensor:
    """Return the loss of each passage of a batch with other states of a layer.

    The model runs from the layer on: the blocks up to it answer with the new states.

    Args:
        captured: What `capture` found in the batch at the layer.
        targets: Which tokens are predicted.
        h_BTD: The states in place of `captured.states[layer]`, which must not be changed themselves.

    Returns:
        Nats, summed over the predicted tokens of each passage, float64 [B].

    Raises:
        HeadError: If the model has no language-model head that reads the output of its decoder.
    """
    answer = _with_states(captured.outputs[layer], h_BTD)
    with decoder.lock:
        with ExitStack() as stack:
            if layer == EMBEDDING_INDEX:
                stack.callback(decoder.on_states(layer, lambda _: answer).remove)
            else:
                for module in [*decoder.blocks[:layer], decoder.module(layer)]:
                    stack.enter_context(answering(module, answer))
            output = decoder.backbone(**captured.inputs, use_cache=False)
        losses_N = head_losses(decoder, output, targets).double().cpu()
    return torch.zeros(len(targets.count), dtype=torch.float64).index_add_(0, targets.row, losses_N)


def _with_states(output: Any, h_BTD: Tensor) -> Any:
    """Return the output of a module with other states in it."""
    if isinstance(output, Tensor):
        return h_BTD
    if isinstance(output, ModelOutput):
        answer = copy(output)
        answer["last_hidden_state"] = h_BTD
        return answer
    return (h_BTD, *output[1:])
