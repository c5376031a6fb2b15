"""Loss gradients at hidden states: one backward pass, from the next-token loss to the requested layers and no deeper.

Parameters never require gradients, so the blocks below the shallowest requested layer run without an autograd
graph. The graph begins at that layer's states. The loss of a passage is the mean, over its real tokens that have a
position before them, of -log p(token | all tokens before it). A BOS thus predicts the first token. Without a BOS,
the first token is not predicted. Special tokens and padding are never predicted.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench_extractor.encode import Encoded
from poolbench_extractor.models.decoder import Decoder

#: Bytes that one chunk of float32 logits may take; several arrays of this size live at once.
HEAD_BYTES = 64 * 2**20


class HeadError(RuntimeError):
    """The model does not compute its logits from its decoder's output, unlike other models of Transformers."""


#: Signals of the mean loss, [B, T], from hidden states and gradients [B, T, D].
OF_GRADIENT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gradient": lambda _h_BTD, g_BTD: g_BTD.norm(dim=-1),
    "gradient_dot": lambda h_BTD, g_BTD: (h_BTD.float() * g_BTD).sum(-1),
}


def lacks_loss(decoder: Decoder) -> CellError | None:
    """Return an error if the model is an encoder or its checkpoint has no language-model head, else None."""
    if not decoder.causal:
        return CellError(Status.NOT_IMPLEMENTED, "an encoder of text predicts no next token")
    if not decoder.has_head:
        return CellError(
            Status.FAILED,
            f"no loss: the checkpoint of {decoder.source} has no language-model head; save it with its head",
        )
    return None


def obstacle(decoder: Decoder) -> CellError | None:
    """Return an error if the model is quantised or `lacks_loss` returns an error, else None."""
    if getattr(decoder.model, "is_quantized", False) or getattr(decoder.model, "hf_quantizer", None) is not None:
        return CellError(
            Status.FAILED, f"no loss gradient: the weights of {decoder.source} are quantised; load it without"
        )
    return lacks_loss(decoder)


def obstacle_of(passage: Encoded) -> CellError | None:
    """Return an error if the passage has fewer than two real tokens, else None.

    The gradient at the last token is zero, so the passage needs a token before it.
    """
    if passage.context.of_text.sum() < 2:
        name = repr(passage.context.passage_id)
        reason = f"no loss gradient: passage {name} has one token, and no next one to predict"
        return CellError(Status.TOO_FEW, reason)
    return None


@dataclass
class Tape:
    """The values that a forward pass keeps for its backward pass.

    Attributes:
        states: Hidden states of the requested layers [B, T, D]. The states of the shallowest layer are the leaf of the
            graph.
        output: The output of the decoder, which holds the states that the language-model head reads.
    """

    states: dict[int, Tensor] = field(default_factory=dict)
    output: Any = None

    @contextmanager
    def recording(self, decoder: Decoder, layers: Sequence[int]) -> Iterator[None]:
        """Record forward passes from the shallowest of `layers` to the head."""
        handles = [
            decoder.blocks[layer].register_forward_hook(
                lambda _module, _args, output, layer=layer: self._record(layer, output)
            )
            for layer in layers
        ]
        handles.append(_trunk(decoder).register_forward_hook(self._finish))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _record(self, layer: int, output: Any) -> Any:
        h_BTD = output[0] if isinstance(output, tuple) else output
        if h_BTD.requires_grad:
            self.states[layer] = h_BTD
            return output
        leaf_BTD = self.states[layer] = h_BTD.detach().requires_grad_()
        return (leaf_BTD, *output[1:]) if isinstance(output, tuple) else leaf_BTD

    def _finish(self, _module: nn.Module, _args: Any, output: Any) -> None:
        self.output = output


@dataclass(frozen=True)
class Targets:
    """The tokens that are predicted."""

    row: Tensor  # passage of each, [N]
    position: Tensor  # padded position that predicts it, [N]
    token: Tensor  # its vocabulary id, [N]
    count: Tensor  # number of them in each passage, [B]

    @classmethod
    def of(cls, batch: Sequence[Encoded], starts: Sequence[int]) -> "Targets":
        """Return the real tokens of each passage that have a preceding position."""
        real = [np.flatnonzero(passage.context.of_text) for passage in batch]
        predicted = [positions[positions > 0] for positions in real]
        counts = [len(positions) for positions in predicted]
        columns = (
            np.repeat(np.arange(len(batch)), counts),
            np.concatenate([start + positions - 1 for start, positions in zip(starts, predicted, strict=True)]),
            np.concatenate([passage.token_ids[positions] for passage, positions in zip(batch, predicted, strict=True)]),
            np.asarray(counts),
        )
        return cls(*map(torch.from_numpy, columns))


def signals_of(decoder: Decoder, tape: Tape, targets: Targets) -> dict[int, dict[str, Tensor]]:
    """Return all signals of `OF_GRADIENT` at the layers of a tape, by layer and name.

    The sum of the losses is propagated back. The gradients are divided by the number of losses at the end, in float32,
    because gradients of a mean over hundreds of tokens would underflow in float16.

    Raises:
        RuntimeError: The model cannot be differentiated.
    """
    z_BTD = final_states(tape.output)
    _, seed_BTD = head_gradient(decoder, tape.output, targets)
    gradients = torch.autograd.grad(z_BTD, list(tape.states.values()), seed_BTD)
    signals = {}
    for (layer, h_BTD), gradient_BTD in zip(tape.states.items(), gradients, strict=True):
        count_B11 = targets.count.clamp(min=1).to(gradient_BTD.device)[:, None, None]
        mean_BTD = gradient_BTD.float() / count_B11
        signals[layer] = {name: signal(h_BTD.detach(), mean_BTD) for name, signal in OF_GRADIENT.items()}
    return signals


def head_gradient(decoder: Decoder, output: Any, targets: Targets) -> tuple[Tensor, Tensor]:
    """Return the loss of each predicted token, and the gradient of the summed loss at the states that the head reads.

    To save memory, logits are computed for one chunk of tokens at a time.

    Returns:
        The losses, float32 [N], and the gradient in the shape and dtype of `output`'s states, [B, T, D].
    """
    z_BTD: Tensor = output[0].detach()
    row, position, token = (column.to(z_BTD.device) for column in (targets.row, targets.position, targets.token))
    z_ND = z_BTD[row, position]
    seed_BTD = torch.zeros_like(z_BTD)
    losses_N = torch.zeros(len(z_ND), device=z_BTD.device)
    for chunk in vocabulary_chunks(decoder, len(z_ND)):
        part_nD = z_ND[chunk].requires_grad_()
        loss_n = _losses(decoder, output, part_nD, token[chunk])
        (seed_BTD[row[chunk], position[chunk]],) = torch.autograd.grad(loss_n.sum(), part_nD)
        losses_N[chunk] = loss_n.detach()
    return losses_N, seed_BTD


def head_losses(decoder: Decoder, output: Any, targets: Targets) -> Tensor:
    """Return the loss of each predicted token, float32 [N], without computing a gradient."""
    z_BTD = final_states(output)
    row, position, token = (column.to(z_BTD.device) for column in (targets.row, targets.position, targets.token))
    losses_N = torch.zeros(len(token), device=z_BTD.device)
    for chunk in vocabulary_chunks(decoder, len(token)):
        losses_N[chunk] = _losses(decoder, output, z_BTD[row[chunk], position[chunk]], token[chunk])
    return losses_N


def final_states(output: Any) -> Tensor:
    """Return the states [B, T, D] that the language-model head reads.

    Raise HeadError if the decoder's output is not a ModelOutput of Transformers.
    """
    if not isinstance(output, ModelOutput):
        raise HeadError("the decoder below its language-model head does not answer as those of Transformers do")
    states: Tensor = output[0]
    return states


def vocabulary_chunks(decoder: Decoder, num_tokens: int) -> Iterator[slice]:
    """Yield ranges of tokens whose logits fit into `HEAD_BYTES`."""
    vocabulary = decoder.model.config.get_text_config(decoder=True).vocab_size
    step = max(1, HEAD_BYTES // (4 * vocabulary))
    yield from (slice(start, start + step) for start in range(0, num_tokens, step))


def _losses(decoder: Decoder, output: Any, z_nD: Tensor, token_n: Tensor) -> Tensor:
    logits_nV = head_logits(decoder, output, z_nD).float()
    return nn.functional.cross_entropy(logits_nV, token_n.to(logits_nV.device), reduction="none")


def head_logits(decoder: Decoder, output: Any, z_ND: Tensor) -> Tensor:
    """Return the model's logits [N, V] for final states.

    The model's forward runs with `z_ND` as the decoder's output, so the logits include biases, scales and soft caps of
    the architecture.

    Raises:
        HeadError: The model's forward does not call the decoder exactly once, so the logits do not come from `z_ND`.
    """
    answer = copy(output)
    answer["last_hidden_state"] = z_ND[None]
    placeholder = torch.zeros(1, len(z_ND), dtype=torch.long, device=decoder.device)
    with answering(_trunk(decoder), answer) as calls:
        logits_NV = decoder.model(input_ids=placeholder, use_cache=False).logits[0]
    if len(calls) != 1:
        raise HeadError("its language-model head does not read the output of its decoder")
    return logits_NV


def _trunk(decoder: Decoder) -> nn.Module:
    """Return the module whose output the language-model head reads."""
    return decoder.backbone


@contextmanager
def answering(module: nn.Module, answer: Any) -> Iterator[list[Any]]:
    """Make `module` return `answer` without running, inside a `with` block.

    Yield a list that grows by one entry with each call of the module.
    """
    calls: list[Any] = []

    def forward(*_args: Any, **_kwargs: Any) -> Any:
        calls.append(answer)
        return answer

    before = vars(module).get("forward")  # a module spread over devices has a forward of its own
    module.forward = forward
    try:
        yield calls
    finally:
        del module.forward
        if before is not None:
            module.forward = before
