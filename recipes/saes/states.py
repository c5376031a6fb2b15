"""States of a layer, token by token, and the loss of the model with other states in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

#: Norm, in medians of its text, from which a token is an attention sink. PoolBench leaves these out as well.
SINK_RATIO = 10.0
_BATCH = 16


class _Read(Exception):  # noqa: N818 - it is not an error
    """The layer has been read: what follows it need not run."""


class Reader:
    """Reads the output of one block of a causal language model."""

    def __init__(self, model: Any, tokenizer: Any, layer: int) -> None:
        self.model, self.tokenizer, self.layer = model.eval().requires_grad_(False), tokenizer, layer
        self._block = model.get_decoder().layers[layer]

    @property
    def width(self) -> int:
        """Return the width D of the states."""
        return int(self.model.config.hidden_size)

    def states(self, texts: Sequence[str]) -> Iterator[Tensor]:
        """Yield states of tokens [n, D], a batch of texts at a time, without attention sinks and padding."""
        for first in range(0, len(texts), _BATCH):
            ids_BT, mask_BT = self._encoded(texts[first : first + _BATCH])
            kept: list[Tensor] = []

            def keep(_module: Any, _args: Any, output: Any, kept: list[Tensor] = kept) -> None:
                kept.append(_of(output).float())
                raise _Read

            with self._hooked(keep), torch.inference_mode(), suppress(_Read):
                self.model.get_decoder()(ids_BT, use_cache=False)
            for h_TD, mask_T in zip(kept[0], mask_BT, strict=True):
                yield _counted(h_TD[mask_T])

    def losses(self, texts: Sequence[str], replaced: Callable[[Tensor], Tensor] | None = None) -> float:
        """Return the mean loss in nats per token, with states [n, D] of the layer replaced."""

        def replace(_module: Any, _args: Any, output: Any) -> Any:
            h_BTD = _of(output)
            new_BTD = torch.stack([_with(h_TD, replaced) for h_TD in h_BTD]) if replaced else h_BTD
            return new_BTD if isinstance(output, Tensor) else (new_BTD, *output[1:])

        total, number = 0.0, 0
        for text in texts:
            ids_BT, _ = self._encoded([text])
            with self._hooked(replace), torch.inference_mode():
                logits_BTV = self.model(ids_BT, use_cache=False).logits[:, :-1].float()
            loss = functional.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten(), reduction="sum")
            total, number = total + float(loss), number + ids_BT.shape[1] - 1
        return total / number

    @contextmanager
    def _hooked(self, hook: Callable[[Any, Any, Any], Any]) -> Iterator[None]:
        handle = self._block.register_forward_hook(hook)
        try:
            yield
        finally:
            handle.remove()

    def _encoded(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        batch = self.tokenizer(
            list(texts), return_tensors="pt", padding=True, padding_side="right", truncation=True, max_length=512
        )
        return batch["input_ids"], batch["attention_mask"].bool()


def _of(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


def _is_sink(h_TD: Tensor) -> Tensor:
    norms_T = h_TD.norm(dim=1)
    return norms_T > SINK_RATIO * norms_T.median()


def _counted(h_TD: Tensor) -> Tensor:
    return h_TD[~_is_sink(h_TD)]


def _with(h_TD: Tensor, replaced: Callable[[Tensor], Tensor]) -> Tensor:
    """Return states with all but the attention sinks replaced: an autoencoder never saw these."""
    return torch.where(_is_sink(h_TD)[:, None], h_TD, replaced(h_TD))
