"""Load Hugging Face decoders from a folder or the hub, and keep the last one in memory."""

import gc
import importlib.util
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForTextEncoding, AutoTokenizer

from poolbench.cancellation import check_cancelled
from poolbench.config import ModelRef, require_unchanged
from poolbench.errors import ModelError
from poolbench.machine.gpu import wait_for_room
from poolbench.model_folders.unreadable import unreadable
from poolbench.settings import ExtractorSettings
from poolbench.steps.extractor import ChangeParams, RandomWeights
from poolbench_extractor.models.changes import apply_change
from poolbench_extractor.models.checks import check_config, is_encoder, is_half
from poolbench_extractor.models.decoder import Decoder, encoder_half, find_blocks, wrap_decoder, wrap_encoder

_WRAPPER = r"^(?:module\.|_orig_mod\.|base_model\.model\.)+"
#: What DistributedDataParallel, torch.compile and PEFT put before the names of a model, as `key_mapping`.
WRAPPERS = {_WRAPPER: ""}
#: Weights of a block that states depend on. Old checkpoints also hold masks, which newer classes compute.
_OF_BLOCK = re.compile(r"(?<!\.masked)(?<!attn)(?<!attention)\.(?:weight|bias)$")
#: GPU memory of a first task, relative to the model: weights and one batch. Later loads use the measured peak.
_ROOM = 1.25
#: Seconds between two looks of a caller that waits whether its work was cancelled.
_LOOK_S = 1.0
_TRUST = ExtractorSettings.variable("trust_remote_code")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Loaded:
    """The weights in which a model and its checkpoint differ.

    Attributes:
        missing: Names of the model's weights that the checkpoint lacks.
        unexpected: Names of weights in the checkpoint that the model does not have.
    """

    missing: Sequence[str]
    unexpected: Sequence[str]

    @classmethod
    def of(cls, loading: Mapping[str, Any]) -> "Loaded":
        """Read the names from the loading information of `from_pretrained`."""
        return cls(sorted(loading["missing_keys"]), sorted(loading["unexpected_keys"]))

    @property
    def is_wrapped(self) -> bool:
        """Return whether weights are missing and the names of all unexpected weights start with a wrapper's prefix."""
        return bool(self.missing and self.unexpected) and all(re.match(_WRAPPER, name) for name in self.unexpected)

    def has_head(self, model: Any) -> bool:
        """Return whether the language-model head was in the checkpoint or shares the weights of the embedding."""
        return not any(name.startswith(_head_of(model)) for name in self.missing)

    def require_complete(self, model: Any, read: Any, source: str) -> None:
        """Raise ModelError if a weight that affects the states is missing from the checkpoint or is not loaded from it.

        The language-model head, the pooler of an encoder, and the towers of other modalities do not affect the states.

        Args:
            model: The loaded model.
            read: The part whose states are used: the model, or its encoder.
        """
        blocks, backbone = find_blocks(read), read.get_decoder()
        text = _path_of(model, backbone)
        unread = (*_head_of(model), f"{text}pooler.")
        missing = [name for name in self.missing if name.startswith(text) and not name.startswith(unread)]
        # Weights of blocks that the model does not have, or does not have in a block.
        paths = {_path_of(model, blocks), _path_of(backbone, blocks)}
        block = re.compile(rf"(?:{'|'.join(map(re.escape, sorted(paths)))})(\d+)\.")
        # Layers that predict further tokens follow the blocks in some checkpoints.
        num_blocks = len(blocks) + (getattr(model.config, "num_nextn_predict_layers", None) or 0)
        weights = [(name, int(match[1])) for name in self.unexpected if (match := block.match(name))]
        left_out = [
            name for name, index in weights if index >= num_blocks or (index < len(blocks) and _OF_BLOCK.search(name))
        ]
        if not missing and not left_out:
            return
        faults = [f"lacks weights, such as {missing[0]}"] if missing else []
        others = left_out or self.unexpected
        if others:
            faults.append(f"has others that the model does not have, such as {others[0]}")
        raise ModelError(
            f"checkpoint {source} {' and '.join(faults)}; it and config.json must be of one model: save them together "
            "with save_pretrained"
        )


def _head_of(model: Any) -> tuple[str, ...]:
    head = model.get_output_embeddings()
    return () if head is None else (_path_of(model, head),)


def _path_of(model: nn.Module, part: nn.Module) -> str:
    """Return the prefix of the names of a part's weights."""
    name = next(name for name, module in model.named_modules() if module is part)
    return f"{name}." if name else ""


def load_decoder(
    ref: ModelRef, deployment: ExtractorSettings | None = None, change: ChangeParams | RandomWeights | None = None
) -> Decoder:
    """Load a model and its tokenizer.

    Args:
        deployment: Device, and whether code of the model repository may run.
        change: Change of the weights after loading, or None.

    Raises:
        ModelError: The model is not a causal decoder or text encoder, lacks a usable tokenizer or weights, cannot be
            read, or is a local folder that changed since its revision was taken.
        GpuBusyError: Other services use the memory of a shared GPU.
    """
    deployment = deployment or ExtractorSettings.load()
    if ref.dtype not in _DTYPES:
        raise ModelError(f"dtype {ref.dtype!r} is not supported; allowed: {', '.join(_DTYPES)}")
    tokenizer, settings = tokenizer_of(ref, deployment), _settings(ref, deployment)
    config = _load_config(ref, settings)
    place = deployment.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if place == "auto" and not importlib.util.find_spec("accelerate"):
        raise ModelError("a model over several devices (device auto) needs the package accelerate")

    kind: Any = AutoModelForCausalLM
    if is_encoder(config):
        kind = AutoModel if is_half(config) else AutoModelForTextEncoding
    wrap = wrap_encoder if is_encoder(config) else wrap_decoder

    def read(source: str) -> tuple[Any, Loaded]:
        load = partial(
            kind.from_pretrained,
            source,
            output_loading_info=True,
            config=config,
            dtype=_DTYPES[ref.dtype],
            device_map="auto" if place == "auto" else None,
            # A mapped file that is written again would change the weights of the loaded model.
            disable_mmap=(place == "cpu" and Path(source).is_dir()) or None,
            **settings,
        )
        try:
            model, report = load()
            if Loaded.of(report).is_wrapped:
                model, report = load(key_mapping=WRAPPERS)
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            raise unreadable(f"model {source}", ref, error, _TRUST) from error
        loaded = Loaded.of(report)
        half = encoder_half(model) if is_half(config) else model
        loaded.require_complete(model, half, source)
        return half, loaded

    def read_tune(source: str) -> Any:
        model, loaded = read(source)
        if not loaded.has_head(model):
            raise ModelError(f"checkpoint {source} lacks weights, such as {loaded.missing[0]}")
        return model

    model, loaded = read(ref.source)
    has_head = loaded.has_head(model)
    if change is not None:
        apply_change(model, change, config, tokenizer, read_tune)
    require_unchanged(ref)
    if place != "auto":
        if place != "cpu":
            wait_for_room("extractor", int(_ROOM * model.get_memory_footprint()))
        model = model.to(place)
    revision = ref.revision or getattr(model.config, "_commit_hash", None) or "unknown"
    return replace(wrap(model, tokenizer, revision=revision, source=ref.source), has_head=has_head)


def tokenizer_of(ref: ModelRef, deployment: ExtractorSettings) -> Any:
    """Load only the tokenizer.

    Raise ModelError if the tokenizer is unusable or the local folder changed since planning.
    """
    require_unchanged(ref)
    return load_tokenizer(ref, _settings(ref, deployment))


class DecoderCache:
    """Cache of one decoder. A caller that needs another decoder waits until the cached one is free.

    Callers are served in the order of their calls, so that steady use of one model cannot block another model.
    """

    def __init__(self, deployment: ExtractorSettings) -> None:
        self._deployment = deployment
        self._changed = threading.Condition()
        self._line: list[object] = []  # callers that wait, in the order in which they came
        self._num_users = 0
        self._held: tuple[tuple[ModelRef, ChangeParams | RandomWeights | None], Decoder] | None = None

    @contextmanager
    def using(self, ref: ModelRef, change: ChangeParams | RandomWeights | None = None) -> Iterator[Decoder]:
        """Yield the decoder of `ref`, with its weights changed by `change`, for a `with` block.

        The decoder is loaded if it is not in memory.

        Raises:
            ModelError: The model's folder changed since planning, even if the model is in memory, or `load_decoder`
                raises this error.
            WorkCancelledError: The work was cancelled while it waited for the decoder.
        """
        require_unchanged(ref)
        place = object()
        with self._changed:
            self._line.append(place)
        try:
            while (decoder := self._take(place, ref, change)) is None:
                check_cancelled()  # a task pauses here for requests, which take the lock
        finally:
            with self._changed:
                self._line.remove(place)
                self._changed.notify_all()
        try:
            yield decoder
        finally:
            del decoder
            with self._changed:
                self._num_users -= 1
                self._changed.notify_all()

    def _take(self, place: object, ref: ModelRef, change: ChangeParams | RandomWeights | None) -> Decoder | None:
        """Return the decoder if the caller's turn comes within a second, else None."""

        def is_held() -> bool:
            return self._held is not None and self._held[0] == (ref, change)

        with self._changed:
            if not self._changed.wait_for(
                lambda: self._line[0] is place and (is_held() or not self._num_users), _LOOK_S
            ):
                return None
            if self._held is None or not is_held():
                self._forget()  # frees the old weights before the new ones are read
                self._held = ((ref, change), load_decoder(ref, self._deployment, change))
            self._num_users += 1
            return self._held[1]

    def release(self) -> None:
        """Free the memory of the cached decoder, unless it is in use."""
        with self._changed:
            if not self._num_users:
                self._forget()

    def _forget(self) -> None:
        self._held = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def loaded(self) -> dict[str, Any]:
        """Return the id, revision and device of the model in memory. Without a model, the id is None."""
        held = self._held
        if held is None:
            return {"model": None}
        (ref, _), decoder = held
        return {"model": ref.id, "model_revision": decoder.revision, "device": str(decoder.device)}


def describe(ref: ModelRef) -> dict[str, Any]:
    """Return a model's revision, depth, width, window, architecture and size from its configuration.

    Raise ModelError if the configuration cannot be read, or the model is neither a decoder nor a text encoder.
    """
    revision = None if ref.is_local else ref.revision
    config = _load_config(ref, {"revision": revision, "trust_remote_code": False})
    text = config.get_text_config(**{"encoder" if is_encoder(config) else "decoder": True})
    return {
        "revision": (None if ref.is_local else getattr(config, "_commit_hash", None)) or ref.revision,
        "num_blocks": text.num_hidden_layers,
        "width": text.hidden_size,
        "window": getattr(text, "max_position_embeddings", None),
        "architecture": "encoder" if is_encoder(config) else "decoder",
        "num_parameters": _num_parameters(config),
    }


def _num_parameters(config: Any) -> int | None:
    """Return the number of weights of a model, without allocating them, or None if the repository has its class."""
    family = AutoModel if is_encoder(config) else AutoModelForCausalLM
    if type(config) not in family._model_mapping:
        return None
    with torch.device("meta"):
        return sum(weights.numel() for weights in family.from_config(config).parameters())


def _settings(ref: ModelRef, deployment: ExtractorSettings) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` for the revision and for trust in the model's code."""
    return {"revision": None if ref.is_local else ref.revision, "trust_remote_code": deployment.trust_remote_code}


def _load_config(ref: ModelRef, settings: dict[str, Any]) -> Any:
    """Load and check the configuration of a model.

    The configuration is read before the weights, so that an unsupported model is not downloaded. Raise ModelError if
    it cannot be read or the model is not supported.
    """
    try:
        config = AutoConfig.from_pretrained(ref.source, **settings)
    except (OSError, ValueError, ImportError) as error:
        raise unreadable(f"model {ref.source}", ref, error, _TRUST) from error
    check_config(config, ref.source, own_code="AutoModelForCausalLM" in getattr(config, "auto_map", {}))
    form = getattr(config, "quantization_config", None)
    if form is not None and form.get("quant_method") in _DEQUANTISED:
        form["dequantize"] = True
    return config


#: Forms of quantised weights that are read as the numbers that they stand for, in the dtype of the request. Their fast
#: kernels need a GPU, and compressed-tensors leaves its weights packed until a whole model, with its head, is called.
_DEQUANTISED = ("compressed-tensors", "fp8", "mxfp4")

_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


def load_tokenizer(ref: ModelRef, settings: dict[str, Any]) -> Any:
    """Load the fast tokenizer of a model.

    Raise ModelError if the tokenizer is missing, cannot be read, or gives no character offsets.
    """
    if ref.is_local and not any((Path(ref.source) / name).is_file() for name in _FILES):
        raise ModelError(
            f"model folder {ref.source} holds no tokenizer (none of {', '.join(_FILES)}); "
            "save the tokenizer beside the weights with save_pretrained"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(ref.source, **settings)
    except (OSError, ValueError, ImportError) as error:
        raise unreadable(f"tokenizer of {ref.source}", ref, error, _TRUST) from error
    if not tokenizer.is_fast:
        raise ModelError(f"tokenizer of {ref.source} gives no character offsets; a fast tokenizer is needed")
    return tokenizer
