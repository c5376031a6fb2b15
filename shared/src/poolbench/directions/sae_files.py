"""Files of sparse autoencoders: those of a folder, and their configuration."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poolbench.directions.sae_formats import READERS, unread_format
from poolbench.directions.sae_formats.converted import layer_of
from poolbench.errors import InputError, shown

WEIGHTS_FILE, CONFIG_FILE = "sae.safetensors", "cfg.json"
#: Tensors of each architecture beside W_enc, W_dec and b_dec.
ARCHITECTURES = {
    "relu": ("b_enc",),
    "jumprelu": ("b_enc", "threshold"),
    "topk": ("b_enc",),
    "batchtopk": ("b_enc", "threshold"),
    "gated": ("b_gate", "r_mag", "b_mag"),
}
#: Settings that change features or decoder rows in ways that are not done here.
RESCALED = ("rescale_acts_by_decoder_norm", "finetuning_scaling_factor")
#: Name of the weights in a folder of SAELens, which writes others beside them, such as the state of its data.
_SAELENS_WEIGHTS = "sae_weights.safetensors"
#: What SAELens fills in where a configuration has no such key, as those before 6.0 have not.
_DEFAULTS: Mapping[str, Any] = {"architecture": "standard", "apply_b_dec_to_input": True}


def read_folder(path: Path) -> dict[str, bytes]:
    """Return the files of an autoencoder under their names in an artifact.

    `path` is a folder of SAELens, a folder with one `.safetensors` file and `cfg.json`, or the `.safetensors` file
    itself. It may also be a folder or a weight file of another format (`sae_formats`), which is then converted. Equal
    files give equal bytes. If the configuration lacks a key that features depend on, the default is used.

    Raise InputError, with the path, for missing or damaged files, unsupported formats, and sites other than the
    residual stream.
    """
    try:
        converted = next(filter(None, (read(path) for read in READERS)), None)
        if converted is None:
            return _saelens(path)
        from safetensors.numpy import save

        config = json.dumps(dict(converted.settings), sort_keys=True).encode()
        return {WEIGHTS_FILE: save(dict(sorted(converted.tensors.items()))), CONFIG_FILE: config}
    except (InputError, ValueError, TypeError) as error:  # the latter two for tensors whose shapes do not fit
        raise InputError(f"{path}: {error}") from None


def _saelens(path: Path) -> dict[str, bytes]:
    folder = path if path.is_dir() else path.parent
    config = folder / CONFIG_FILE
    default = folder / _SAELENS_WEIGHTS
    weights = ([default] if default.is_file() else sorted(folder.glob("*.safetensors"))) if path.is_dir() else [path]
    if len(weights) != 1 or not weights[0].is_file() or not config.is_file():
        names = ", ".join(sorted(file.name for file in folder.iterdir())[:10]) if folder.is_dir() else "nothing"
        raise InputError(f"one .safetensors file with {CONFIG_FILE} beside it is needed; there is {names}")
    settings = config.read_bytes()
    completed = read_config(settings)
    layer_of(completed)
    if json.loads(settings) != completed:
        settings = json.dumps(completed, sort_keys=True).encode()
    return {WEIGHTS_FILE: weights[0].read_bytes(), CONFIG_FILE: settings}


def read_config(config: bytes) -> dict[str, Any]:
    """Return the configuration, completed with the defaults of SAELens.

    Raise InputError if the configuration is not a JSON object, belongs to another tool, or asks for rescaled features.
    """
    try:
        settings = json.loads(config)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{CONFIG_FILE} of the autoencoder is not JSON: {error}") from None
    if not isinstance(settings, dict):
        raise InputError(f"{CONFIG_FILE} of the autoencoder must be an object, got {type(settings).__name__}")
    if "num_latents" in settings and "architecture" not in settings:
        raise unread_format("sparsify")
    settings = {**_DEFAULTS, **settings}
    normalise = settings.get("normalize_activations") or "none"
    if normalise != "none":
        raise InputError(
            f"the autoencoder wants activations normalised ({normalise!r}); fold the scale into its weights, since "
            "vectors are encoded at the scale they have"
        )
    for name in RESCALED:
        if settings.get(name):
            raise InputError(f"the autoencoder wants its features rescaled ({name}); fold the scale into its weights")
    return settings


def architecture_of(settings: Mapping[str, Any]) -> str:
    """Return the architecture that a configuration names.

    Raise InputError if the architecture or activation is unknown.
    """
    name = str(settings.get("architecture", "")).lower().replace("_", "").replace("-", "")
    architecture = {"standard": "relu"}.get(name, name)
    if name == "standard":  # older configurations name the activation beside it
        architecture = str(settings.get("activation_fn") or settings.get("activation_fn_str") or "relu").lower()
        if architecture not in ("relu", "topk"):
            raise InputError(f"activation {architecture!r} of the standard autoencoder is unknown; known: relu, topk")
    if architecture not in ARCHITECTURES:
        names = ", ".join(("standard", *ARCHITECTURES))
        raise InputError(f"architecture {settings.get('architecture')!r} of the autoencoder is unknown; known: {names}")
    return architecture


def k_of(settings: Mapping[str, Any]) -> int:
    """Return the features that a vector of a topk autoencoder keeps. Raise InputError without a whole number."""
    arguments = settings.get("activation_fn_kwargs")
    k = settings.get("k", arguments.get("k") if isinstance(arguments, dict) else None)
    if not isinstance(k, int):
        raise InputError(f"a topk autoencoder needs the whole number k in {CONFIG_FILE}; got {shown(k)}")
    return k
