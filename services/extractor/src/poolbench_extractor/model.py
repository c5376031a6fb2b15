"""Loads any Hugging Face decoder: its tokenizer with offsets, its blocks, its window and its depth."""

from __future__ import annotations

import importlib.util
import inspect
import threading
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from poolbench.config import ModelRef, folder_revision
from poolbench.errors import LayerError, ModelError
from poolbench_extractor.checks import check_causal, check_config, pads_left, probe
from poolbench_extractor.config import Deployment
from poolbench_extractor.inflow import observe_attention
from poolbench_extractor.tokenizer import load_tokenizer, unreadable

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, eq=False)
class Decoder:
    """A loaded decoder and what extraction must know of it.

    Attributes:
        model: The causal language model, in evaluation mode.
        tokenizer: A fast tokenizer, which gives character offsets.
        blocks: The decoder blocks in order.
        revision: The revision that was really loaded.
        observed: Whether its attention reports queries and keys, as S1 needs.
        source: Names the model in messages.
        lock: Held during a forward pass, because hooks belong to the model and not to the caller.
    """

    model: Any
    tokenizer: Any
    blocks: nn.ModuleList
    revision: str
    observed: bool
    source: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def num_blocks(self) -> int:
        """Depth in blocks."""
        return len(self.blocks)

    @cached_property
    def width(self) -> int:
        """Width D of the residual stream."""
        return int(self._settings.hidden_size)

    @cached_property
    def window(self) -> int | None:
        """Positions that the model can see; None where nothing bounds them."""
        return getattr(self._settings, "max_position_embeddings", None)

    @cached_property
    def vocabulary(self) -> int:
        """Number of token ids that the embedding knows."""
        return int(self.backbone.get_input_embeddings().weight.shape[0])

    @cached_property
    def rotary_switch(self) -> int | None:
        """Length beyond which the whole batch gets other rotary frequencies (LongRoPE); None for most models."""
        rope = getattr(self._settings, "rope_parameters", None) or {}
        groups = [group for group in rope.values() if isinstance(group, dict)] or [rope]
        lengths = [g["original_max_position_embeddings"] for g in groups if g.get("rope_type") == "longrope"]
        return min(lengths, default=None)

    @property
    def device(self) -> torch.device:
        """Where inputs go: the device on which the embedding runs."""
        return _device_of(self.backbone.get_input_embeddings())

    @property
    def backbone(self) -> Any:
        """The text decoder without its language-model head, and without the towers of other modalities."""
        return self.model.get_decoder()

    @cached_property
    def accepts_positions(self) -> bool:
        """Whether the model takes explicit position ids; only padding on the left asks for them.

        Raises:
            ModelError: If padding on the left would change its states.
        """
        accepts = "position_ids" in inspect.signature(self.backbone.forward).parameters
        with self.lock:
            if not pads_left(self.backbone, self.blocks, self.device, positions=accepts):
                raise ModelError(f"{self.source} cannot be padded on the left: its states would change")
        return accepts

    def layer(self, layer: int) -> int:
        """The index of a block; negative indices count from the end.

        Raises:
            LayerError: Naming the valid range.
        """
        index = layer + self.num_blocks if layer < 0 else layer
        if not 0 <= index < self.num_blocks:
            last = self.num_blocks - 1
            raise LayerError(f"layer {layer} is out of range: {self.source} has blocks 0..{last}")
        return index

    @cached_property
    def _settings(self) -> Any:
        return self.model.config.get_text_config(decoder=True)


def load_decoder(ref: ModelRef, deployment: Deployment | None = None) -> Decoder:
    """Loads model and tokenizer.

    Args:
        ref: Where from, at which revision and in which type.
        deployment: On which device, and whether code of the model repository may run.

    Raises:
        ModelError: If it is no decoder, lacks a usable tokenizer, cannot be read, or is a local folder that
            changed since its revision was taken.
    """
    deployment = deployment or Deployment()
    tokenizer, settings = tokenizer_of(ref, deployment), _settings(ref, deployment)
    config = _load_config(ref, settings)
    place = deployment.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if place == "auto" and not importlib.util.find_spec("accelerate"):
        raise ModelError("a model over several devices (device auto) needs the package accelerate")
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            ref.source,
            config=config,
            dtype=_dtype(ref.dtype),
            device_map="auto" if place == "auto" else None,
            **settings,
        )
    except (OSError, ValueError, ImportError) as error:
        raise unreadable(f"model {ref.source}", error) from error
    if place != "auto":
        model = model.to(place)
    revision = ref.revision or getattr(model.config, "_commit_hash", None) or "unknown"
    return wrap_decoder(model, tokenizer, revision=revision, source=ref.source)


def tokenizer_of(ref: ModelRef, deployment: Deployment) -> Any:
    """The tokenizer of a model, without the model.

    Raises:
        ModelError: If it is unusable, or the model is a local folder that changed since its revision was taken.
    """
    _check_unchanged(ref)
    return load_tokenizer(ref, _settings(ref, deployment))


def wrap_decoder(model: Any, tokenizer: Any, *, revision: str = "local", source: str = "the model") -> Decoder:
    """A decoder around a model that is already in memory.

    Raises:
        ModelError: If it has no decoder blocks, or is not causal.
    """
    model = model.eval().requires_grad_(False)
    routed = observe_attention(model)
    blocks = find_blocks(model)
    found = probe(model.get_decoder(), blocks, _device_of(model.get_decoder().get_input_embeddings()))
    check_causal(found, model, source)
    return Decoder(model, tokenizer, blocks, revision, routed and found.observed, source)


def find_blocks(model: Any) -> nn.ModuleList:
    """The module list that holds the decoder blocks, whatever the architecture calls it.

    It is the outermost ``ModuleList`` with as many entries as the configuration has hidden layers.

    Raises:
        ModelError: If there is none.
    """
    depth = getattr(model.config.get_text_config(decoder=True), "num_hidden_layers", None)
    lists = [(name, m) for name, m in model.get_decoder().named_modules() if isinstance(m, nn.ModuleList)]
    matching = [(name.count("."), m) for name, m in lists if len(m) == depth]
    if not matching:
        found = ", ".join(f"{name} ({len(m)})" for name, m in lists) or "none"
        raise ModelError(f"{type(model).__name__}: no list of {depth} decoder blocks; module lists found: {found}")
    return min(matching, key=lambda pair: pair[0])[1]


class DecoderCache:
    """Keeps the decoder asked for last; callers that still hold an older one keep it alive."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._lock = threading.Lock()
        self._held: tuple[ModelRef, Decoder] | None = None

    def get(self, ref: ModelRef) -> Decoder:
        """The decoder of ``ref``, loaded if it is not the one held."""
        with self._lock:
            if self._held is None or self._held[0] != ref:
                self._held = None  # frees the old weights before the new ones are read
                self._held = (ref, load_decoder(ref, self._deployment))
            return self._held[1]

    def loaded(self) -> dict[str, Any]:
        """Id, revision and device of the model held."""
        if self._held is None:
            return {"model": None}
        ref, decoder = self._held
        return {"model": ref.id, "model_revision": decoder.revision, "device": str(decoder.device)}


def describe(ref: ModelRef) -> dict[str, Any]:
    """Revision, depth, width and window of a model, from its configuration alone.

    Raises:
        ModelError: If it cannot be read or is no decoder.
    """
    revision = None if ref.is_local else ref.revision
    config = _load_config(ref, {"revision": revision, "trust_remote_code": False})
    text = config.get_text_config(decoder=True)
    return {
        "revision": (None if ref.is_local else getattr(config, "_commit_hash", None)) or ref.revision,
        "num_blocks": text.num_hidden_layers,
        "width": text.hidden_size,
        "window": getattr(text, "max_position_embeddings", None),
    }


def _settings(ref: ModelRef, deployment: Deployment) -> dict[str, Any]:
    """Revision and trust, as ``from_pretrained`` takes them."""
    return {
        "revision": None if ref.is_local else ref.revision,
        "trust_remote_code": deployment.trust_remote_code,
    }


def _check_unchanged(ref: ModelRef) -> None:
    """Results of a folder that changed in the meantime would carry the wrong revision."""
    if not ref.is_local or ref.revision is None:
        return
    found = folder_revision(Path(ref.source))
    if found != ref.revision:
        raise ModelError(
            f"model folder {ref.source} is at revision {found}, asked for {ref.revision}; plan the run again"
        )


def _load_config(ref: ModelRef, settings: dict[str, Any]) -> Any:
    """The configuration, read before the weights so that a model of another kind costs no download."""
    try:
        config = AutoConfig.from_pretrained(ref.source, **settings)
    except (OSError, ValueError, ImportError) as error:
        raise unreadable(f"model {ref.source}", error) from error
    check_config(config, ref.source, own_code="AutoModelForCausalLM" in getattr(config, "auto_map", {}))
    return config


def _device_of(embedding: nn.Module) -> torch.device:
    """Where a module computes; offloaded weights lie elsewhere until then, and a hook of accelerate knows."""
    place = getattr(getattr(embedding, "_hf_hook", None), "execution_device", None)
    return torch.device(place) if place is not None else next(embedding.parameters()).device


def _dtype(name: str) -> torch.dtype:
    if name not in _DTYPES:
        raise ModelError(f"dtype {name!r} is not supported; allowed: {', '.join(_DTYPES)}")
    return _DTYPES[name]
