"""A loaded decoder and its properties: blocks, width, window, device."""

import copy
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from poolbench.config import EMBEDDING_INDEX
from poolbench.errors import LayerError, ModelError
from poolbench_extractor.models.attention import observe_attention
from poolbench_extractor.models.checks import check_causal, pads_left, probe


@dataclass(frozen=True, eq=False)
class Decoder:
    """A loaded decoder and its properties.

    Attributes:
        tokenizer: A fast tokenizer, which gives character offsets.
        observed: Whether the queries and keys of its attention can be observed, as strategy S1 needs.
        causal: Whether a token sees only the tokens before it. False for encoders, which predict no next token.
        has_head: Whether the checkpoint has the language-model head. If not, the weights of the head are random.
        lock: Lock to hold during a forward pass, because hooks act on every forward pass of the model.
    """

    model: Any
    tokenizer: Any
    blocks: nn.ModuleList
    revision: str
    observed: bool
    source: str = ""
    causal: bool = True
    has_head: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def num_blocks(self) -> int:
        """Return the depth in blocks."""
        return len(self.blocks)

    @cached_property
    def width(self) -> int:
        """Return the width D of the residual stream."""
        return int(self._settings.hidden_size)

    @cached_property
    def window(self) -> int | None:
        """Return the number of positions that the model can see, or None if it is unbounded."""
        positions: int | None = getattr(self._settings, "max_position_embeddings", None)
        table = getattr(getattr(self.backbone, "embeddings", None), "position_embeddings", None)
        first = getattr(table, "padding_idx", None)  # RoBERTa counts positions from behind this one
        return positions if positions is None or first is None else positions - first - 1

    @cached_property
    def vocabulary(self) -> int:
        """Return the number of token ids that the embedding knows."""
        return int(self.backbone.get_input_embeddings().weight.shape[0])

    @cached_property
    def rotary_switch(self) -> int | None:
        """Return the length beyond which the model switches its rotary frequencies (LongRoPE), or None.

        The switch applies to the whole batch. For most models, the length is None.
        """
        rope = getattr(self._settings, "rope_parameters", None) or {}
        groups = [group for group in rope.values() if isinstance(group, dict)] or [rope]
        lengths = [g["original_max_position_embeddings"] for g in groups if g.get("rope_type") == "longrope"]
        return min(lengths, default=None)

    @property
    def device(self) -> torch.device:
        """Return the device for inputs, on which the embedding runs."""
        return _device_of(self.backbone.get_input_embeddings())

    @property
    def backbone(self) -> Any:
        """Return the text decoder without its language-model head, and without the towers of other modalities."""
        return self.model.get_decoder()

    @cached_property
    def accepts_positions(self) -> bool:
        """Return whether the model takes position ids.

        Raise ModelError if padding on the left changes the states of the model.
        """
        accepts = "position_ids" in inspect.signature(self.backbone.forward).parameters
        with self.lock:
            if not pads_left(self.backbone, self.blocks, self.device, positions=accepts):
                raise ModelError(f"{self.source} cannot be padded on the left: its states would change")
        return accepts

    def is_block(self, layer: int) -> bool:
        """Return whether a layer is a block. The embedding and the states after the last norm are not blocks."""
        return 0 <= layer < self.num_blocks

    def on_states(self, layer: int, use: Callable[[Any], Any]) -> RemovableHandle:
        """Register a hook on the states of a layer. In each forward pass, the result of `use` replaces the states.

        `use` receives the output of the layer's module. If `use` returns None, the states do not change. For the
        embedding, `use` receives the input of the first block, because some architectures add positions, a scale or a
        norm after the token embedding. Raise LayerError with the valid range.
        """
        block = max(layer, 0)
        module = self.module(block)
        runs = [number for number, other in enumerate(self.blocks) if other is module]  # several if weights are shared
        turns = cycle(number == block for number in runs or [block])

        def leave(_module: nn.Module, _args: Any, output: Any) -> Any:
            return use(output) if next(turns) else None

        def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            states = use(args[0] if args else kwargs["hidden_states"]) if next(turns) else None
            if states is None:
                return None
            return ((states, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": states})

        if layer == EMBEDDING_INDEX:
            return module.register_forward_pre_hook(enter, with_kwargs=True)
        return module.register_forward_hook(leave)

    def module(self, layer: int) -> nn.Module:
        """Return the module that outputs the states of a layer.

        Raise LayerError with the valid range if there is no such layer, or if the layer is the embedding.
        """
        if layer == self.num_blocks:
            return self.backbone  # type: ignore[no-any-return]
        if not self.is_block(layer):
            last = self.num_blocks - 1
            raise LayerError(f"layer {layer} is out of range: {self.source} has blocks 0..{last}")
        return self.blocks[layer]

    @cached_property
    def _settings(self) -> Any:
        return self.model.config.get_text_config(decoder=True)


def wrap_encoder(model: Any, tokenizer: Any, *, revision: str = "local", source: str = "the model") -> Decoder:
    """Wrap a text encoder as a `Decoder` that is not causal. Raise ModelError if the encoder has no blocks."""
    model = model.eval().requires_grad_(False)
    blocks = find_blocks(model)
    if getattr(model.config, "num_hidden_groups", None):  # ALBERT runs each block several times
        depth = model.config.num_hidden_layers
        blocks = nn.ModuleList(blocks[int(number / (depth / len(blocks)))] for number in range(depth))
    return Decoder(model, tokenizer, blocks, revision, observed=False, source=source, causal=False)


def encoder_half(model: Any) -> Any:
    """Return the encoder of an encoder-decoder model, with its own copy of the configuration."""
    encoder = model.get_encoder()
    encoder.config = copy.deepcopy(encoder.config)
    encoder.config.is_encoder_decoder = False  # else the configuration gives the depth of the decoder
    return encoder


def wrap_decoder(model: Any, tokenizer: Any, *, revision: str = "local", source: str = "the model") -> Decoder:
    """Wrap a loaded causal model as a `Decoder`. Raise ModelError if the model has no blocks or is not causal."""
    model = model.eval().requires_grad_(False)
    routed = observe_attention(model)
    blocks = find_blocks(model)
    causality = probe(model.get_decoder(), blocks, _device_of(model.get_decoder().get_input_embeddings()))
    check_causal(causality, model, source)
    return Decoder(model, tokenizer, blocks, revision, routed and causality.observed, source)


def find_blocks(model: Any) -> nn.ModuleList:
    """Return the outermost `ModuleList` whose length is the number of hidden layers.

    If blocks share weights (ALBERT), the length is the number of distinct blocks. Raise ModelError if there is no such
    list.
    """
    settings = model.config.get_text_config(decoder=True)
    depth = getattr(settings, "num_hidden_groups", None) or getattr(settings, "num_hidden_layers", None)
    lists = [(name, m) for name, m in model.get_decoder().named_modules() if isinstance(m, nn.ModuleList)]
    matching = [(name.count("."), m) for name, m in lists if len(m) == depth]
    if not matching:
        list_names = ", ".join(f"{name} ({len(m)})" for name, m in lists) or "none"
        raise ModelError(f"{type(model).__name__}: no list of {depth} decoder blocks; module lists found: {list_names}")
    return min(matching, key=lambda pair: pair[0])[1]


def _device_of(embedding: nn.Module) -> torch.device:
    """Return the device on which a module computes. For offloaded weights, accelerate's hook names the device."""
    place = getattr(getattr(embedding, "_hf_hook", None), "execution_device", None)
    return torch.device(place) if place is not None else next(embedding.parameters()).device
