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
        observed: Whether its attention reports queries and keys, as S1 needs.
        causal: Whether tokens see only those before them. Those of an encoder see all, and it predicts no next token.
        has_head: Whether its language-model head was in the checkpoint; else its weights are random.
        lock: Held during a forward pass, because hooks belong to the model and not to the caller.
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
        """Return width D of the residual stream."""
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
        """Return number of token ids that the embedding knows."""
        return int(self.backbone.get_input_embeddings().weight.shape[0])

    @cached_property
    def rotary_switch(self) -> int | None:
        """Return length beyond which the whole batch gets other rotary frequencies (LongRoPE); None for most models."""
        rope = getattr(self._settings, "rope_parameters", None) or {}
        groups = [group for group in rope.values() if isinstance(group, dict)] or [rope]
        lengths = [g["original_max_position_embeddings"] for g in groups if g.get("rope_type") == "longrope"]
        return min(lengths, default=None)

    @property
    def device(self) -> torch.device:
        """Return where inputs go: the device on which the embedding runs."""
        return _device_of(self.backbone.get_input_embeddings())

    @property
    def backbone(self) -> Any:
        """Return the text decoder without its language-model head, and without the towers of other modalities."""
        return self.model.get_decoder()

    @cached_property
    def accepts_positions(self) -> bool:
        """Return whether the model takes position ids; raise ModelError if padding on the left changes its states."""
        accepts = "position_ids" in inspect.signature(self.backbone.forward).parameters
        with self.lock:
            if not pads_left(self.backbone, self.blocks, self.device, positions=accepts):
                raise ModelError(f"{self.source} cannot be padded on the left: its states would change")
        return accepts

    def is_block(self, layer: int) -> bool:
        """Return whether a layer is a block, and not the embedding or the states after the last norm."""
        return 0 <= layer < self.num_blocks

    def on_states(self, layer: int, use: Callable[[Any], Any]) -> RemovableHandle:
        """Call `use` in each forward pass with what holds the states of a layer; what it returns takes their place.

        Those of the embedding are what the first block reads: positions, a scale or a norm come after the embedding of
        the tokens in some architectures. None changes nothing. Raise LayerError with the valid range.
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
        """Return the module whose output is a layer other than the embedding; raise LayerError with the valid range."""
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
    """Wrap an encoder of text as a decoder whose tokens see all others. Raise ModelError if it has no blocks."""
    model = model.eval().requires_grad_(False)
    blocks = find_blocks(model)
    if getattr(model.config, "num_hidden_groups", None):  # ALBERT runs each block several times
        depth = model.config.num_hidden_layers
        blocks = nn.ModuleList(blocks[int(number / (depth / len(blocks)))] for number in range(depth))
    return Decoder(model, tokenizer, blocks, revision, observed=False, source=source, causal=False)


def encoder_half(model: Any) -> Any:
    """Return the encoder of a model that has a decoder too, with a configuration of its own."""
    encoder = model.get_encoder()
    encoder.config = copy.deepcopy(encoder.config)
    encoder.config.is_encoder_decoder = False  # else the configuration gives the depth of the decoder
    return encoder


def wrap_decoder(model: Any, tokenizer: Any, *, revision: str = "local", source: str = "the model") -> Decoder:
    """Return a decoder around a loaded model; raise ModelError if it has no decoder blocks or is not causal."""
    model = model.eval().requires_grad_(False)
    routed = observe_attention(model)
    blocks = find_blocks(model)
    causality = probe(model.get_decoder(), blocks, _device_of(model.get_decoder().get_input_embeddings()))
    check_causal(causality, model, source)
    return Decoder(model, tokenizer, blocks, revision, routed and causality.observed, source)


def find_blocks(model: Any) -> nn.ModuleList:
    """Return the outermost `ModuleList` with as many entries as hidden layers; raise ModelError if there is none.

    Where blocks share weights, it has as many entries as different blocks.
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
    """Return where a module computes; accelerate's hook knows it for offloaded weights."""
    place = getattr(getattr(embedding, "_hf_hook", None), "execution_device", None)
    return torch.device(place) if place is not None else next(embedding.parameters()).device
