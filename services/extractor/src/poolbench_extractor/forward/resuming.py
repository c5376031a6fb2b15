"""The rest of a forward pass, from other states of a layer on."""

from contextlib import ExitStack
from copy import copy
from typing import Any

from torch import Tensor
from transformers.utils import ModelOutput

from poolbench.config import EMBEDDING_INDEX
from poolbench_extractor.forward.capture import Captured
from poolbench_extractor.forward.gradients import answering
from poolbench_extractor.models.decoder import Decoder


def resumed(decoder: Decoder, captured: Captured, layer: int, h_BTD: Tensor) -> Any:
    """Return the output of a decoder below its head, with other states of a layer: the blocks up to it do not run.

    The caller holds the decoder's lock.

    Args:
        captured: What `capture` found in the batch at the layer.
        h_BTD: The states in place of `captured.states[layer]`, which must not be changed themselves.
    """
    answer = _with_states(captured.outputs[layer], h_BTD)
    with ExitStack() as stack:
        if layer == EMBEDDING_INDEX:
            stack.callback(decoder.on_states(layer, lambda _: answer).remove)
        else:
            for module in [*decoder.blocks[:layer], decoder.module(layer)]:
                stack.enter_context(answering(module, answer))
        return decoder.backbone(**captured.inputs, use_cache=False)


def _with_states(output: Any, h_BTD: Tensor) -> Any:
    """Return the output of a module with other states in it."""
    if isinstance(output, Tensor):
        return h_BTD
    if isinstance(output, ModelOutput):
        answer = copy(output)
        answer["last_hidden_state"] = h_BTD
        return answer
    return (h_BTD, *output[1:])
