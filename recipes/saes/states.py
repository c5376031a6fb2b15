"""States of a layer, token by token."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

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
            outputs: list[Tensor] = []

            def keep(_module: Any, _args: Any, output: Any, outputs: list[Tensor] = outputs) -> None:
                outputs.append(_of(output).float())
                raise _Read

            with self._hooked(keep), torch.inference_mode(), suppress(_Read):
                self.model.get_decoder()(ids_BT, use_cache=False)
            for h_TD, mask_T in zip(outputs[0], mask_BT, strict=True):
                yield _counted(h_TD[mask_T])

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
        return batch["input_ids"].to(self.model.device), batch["attention_mask"].bool()


def _of(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


def _counted(h_TD: Tensor) -> Tensor:
    norms_T = h_TD.norm(dim=1)
    return h_TD[norms_T <= SINK_RATIO * norms_T.median()]
