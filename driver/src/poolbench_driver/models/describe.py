"""The properties of a model that planning and pages need: revision, depth, width, architecture and size."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal

from poolbench.config import LayerChoice, ModelRef, StrictModel, asset_path, resolve_layers, resolve_model
from poolbench.errors import LayerError, ModelError, shown
from poolbench_driver.cluster.services import Services
from poolbench_driver.config import RunConfig

Architecture = Literal["encoder", "decoder"]
#: Properties of a model that its record and the answer of the extractor have.
_SHAPE = ("num_blocks", "width", "architecture", "num_parameters")
#: Types of models that are encoders, also where the class in their configuration is that of the states alone.
_ENCODERS = {
    "albert", "bert", "deberta", "deberta-v2", "distilbert", "electra", "modernbert", "mpnet", "roberta", "xlm-roberta"
}  # fmt: skip
_NUM_BLOCKS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers")
_WIDTH = ("hidden_size", "n_embd", "d_model", "dim")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
#: Licences of the preset models, as dataset hubs spell them; a release inherits its model's terms.
MODEL_LICENCES = {
    "demo": "apache-2.0",
    "smollm2-135m": "apache-2.0",
    "llama-3.1-8b": "llama3.1",
    "gemma-2-9b": "gemma",
    "mistral-7b-v0.3": "apache-2.0",
}
#: Folders of preset models in the layout of the reference project.
PUBLISHED_FOLDERS = {"llama-3.1-8b": "llama3_8b", "gemma-2-9b": "gemma2_9b", "mistral-7b-v0.3": "mistral_7b"}
#: spaCy pipelines that the project ships.
ASSETS = ("annotator",)


#: The states of a model by concept, split and layer: artifact keys.
StatesKeys = Mapping[tuple[str, str, int], str]


class _Record(StrictModel):
    id: str
    revision: str | None
    dtype: str
    num_blocks: int
    width: int
    architecture: Architecture | None = None
    num_parameters: int | None = None


@dataclass(frozen=True)
class ModelInfo:
    """A resolved model."""

    ref: ModelRef
    num_blocks: int
    width: int
    imported: StatesKeys = field(default_factory=dict)  # keys of imported states; empty for a model that can be run
    architecture: Architecture | None = None  # None if the configuration does not say which
    num_parameters: int | None = None  # weights, embeddings included; None if they are not in safetensors files

    @property
    def params(self) -> dict[str, Any]:
        """Return the task parameters that identify the model: id, revision and dtype.

        They are part of the key of every artifact that depends on the model.
        """
        return {"model": self.ref.id, "model_revision": self.ref.revision, "dtype": self.ref.dtype}

    def recorded(self) -> bytes:
        """Return the properties that planning needs, as JSON.

        The source is left out, because it may be a folder of this machine.
        """
        ref, shape = self.ref, {name: getattr(self, name) for name in _SHAPE}
        return _Record(id=ref.id, revision=ref.revision, dtype=ref.dtype, **shape).model_dump_json(indent=1).encode()

    @classmethod
    def recall(cls, record: bytes) -> ModelInfo:
        """Return the model of a record. Raise ValueError if the record is damaged."""
        fields = _Record.model_validate_json(record)
        shape = {name: getattr(fields, name) for name in _SHAPE}
        return cls(ModelRef(fields.id, fields.id, fields.revision, fields.dtype), **shape)

    def layers(self, layers: Sequence[LayerChoice] | None) -> list[int]:
        """Return the numbers of the chosen layers in ascending order.

        If `layers` is None, return the layers at depths .5, .75 and 1, or all layers of imported states. Raise
        LayerError for a layer that the model does not have or that was not imported.
        """
        if self.imported:
            return _imported_layers(layers, sorted({layer for _, _, layer in self.imported}))
        return resolve_layers(layers, self.num_blocks)

    def layer(self, layer: LayerChoice) -> int:
        """Return the number of one chosen layer. Errors are the errors of `layers`."""
        return self.layers([layer])[0]


def _imported_layers(layers: Sequence[LayerChoice] | None, imported: list[int]) -> list[int]:
    wrong = [layer for layer in layers or () if not isinstance(layer, int) or layer not in imported]
    if wrong:
        raise LayerError(f"layer {wrong[0]} was not imported; --layers may name {', '.join(map(str, imported))}")
    return imported if layers is None else sorted({int(layer) for layer in layers})


def describe_model(config: RunConfig, services: Services) -> ModelInfo:
    """Return the properties of the model of a run. Raise ModelError if the model cannot be used."""
    return describe(resolve_model(config.model, revision=config.model_revision, dtype=config.dtype), services)


def describe(ref: ModelRef, services: Services | None) -> ModelInfo:
    """Read the configuration of a model in a folder, or ask the extractor about a hub model.

    A model in a folder needs no services. Raise ModelError if the folder is incomplete or its configuration is invalid.
    """
    if services is not None and not ref.is_local:
        answer = services.get("extractor", "model", {"model": ref.source, "revision": ref.revision or ""})
        resolved = ModelRef(ref.id, ref.source, answer["revision"], ref.dtype, ref.summary)
        return ModelInfo(resolved, **{name: answer[name] for name in _SHAPE})
    return ModelInfo(ref, **_local_shape(Path(ref.source)))


def _local_shape(folder: Path) -> dict[str, Any]:
    """Return the properties of a model in a folder, after a check that the folder is complete."""
    file = folder / "config.json"
    if not file.is_file():
        raise ModelError(f"model folder {folder} has no config.json; it must hold a Hugging Face model")
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise ModelError(
            f"model folder {folder} has no tokenizer: one of {', '.join(_TOKENIZERS)} is needed; "
            "copy it from the model's source, or save it there with tokenizer.save_pretrained"
        )
    try:
        settings = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file} is not JSON: {error}") from None
    inner = settings.get("text_config") or {} if isinstance(settings, dict) else None  # of multimodal models
    if not isinstance(inner, dict):
        raise ModelError(f"{file} is not a JSON object, or its text_config is not: {shown(settings)}")
    shape = {"architecture": _architecture(settings), "num_parameters": _num_parameters(folder)}
    settings |= inner
    return shape | {"num_blocks": _setting(settings, _NUM_BLOCKS, file), "width": _setting(settings, _WIDTH, file)}


def _architecture(settings: Mapping[str, Any]) -> Architecture | None:
    """Return whether a model is read as an encoder or a decoder, as far as its configuration says so."""
    classes = tuple(map(str, settings.get("architectures") or ()))
    if any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in classes) or settings.get("is_decoder"):
        return "decoder"
    is_encoder = settings.get("is_encoder_decoder") or settings.get("model_type") in _ENCODERS
    return "encoder" if is_encoder or any(name.endswith("ForMaskedLM") for name in classes) else None


def _num_parameters(folder: Path) -> int | None:
    """Return the number of weights in the safetensors files of a folder, or None without such files."""
    from safetensors import SafetensorError, safe_open

    total = 0
    for file in folder.glob("model*.safetensors"):
        try:
            with safe_open(file, "numpy") as weights:
                total += sum(prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
        except SafetensorError as error:
            raise ModelError(f"{file} cannot be read as safetensors: {error}") from None
    return total or None


def model_type(ref: ModelRef) -> str | None:
    """Return the type of a model in a folder, as Transformers names it (such as `llama`), or None if it is unknown."""
    try:
        settings = json.loads((Path(ref.source) / "config.json").read_text("utf-8"))
        return str(settings["model_type"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None


def annotator_version(name: str) -> str | None:
    """Return the version of a shipped spaCy pipeline, or None for a pipeline installed on the pooler's machine."""
    if name not in ASSETS:
        return None
    return str(json.loads((asset_path(name) / "meta.json").read_text("utf-8"))["version"])


def _setting(settings: dict[str, Any], names: Sequence[str], file: Path) -> int:
    for name in names:
        if name in settings:
            return _whole(settings[name], name, file)
    raise ModelError(f"{file} has none of {', '.join(names)}")


def _whole(value: Any, name: str, file: Path) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise ModelError(f"{name} in {file} is {shown(value)}; a whole number above 0 is needed")
    return value


def model_folder(model: str) -> str:
    """Return the folder name of a model in the published layout. For an unpublished model, make a name from its id."""
    name = model.rstrip("/").rpartition("/")[2] if model.startswith("/") else model
    return PUBLISHED_FOLDERS.get(model) or "".join(sign if sign.isalnum() or sign in "._-" else "_" for sign in name)
