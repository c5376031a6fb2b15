"""Gemma Scope: `params.npz`, with site and layer in the names of the folders around it."""

import re
import zipfile
from pathlib import Path

import numpy as np

from poolbench.directions.sae_formats.converted import Converted, required, settings_of, unread_format
from poolbench.errors import InputError

_FILE, _SECOND = "params.npz", "params.safetensors"
_SITE = re.compile(r"gemma-scope-.*?-(mlp|att|transcoders)\b")
_LAYER = re.compile(r"layer_(\d+)")
_TENSORS = ("W_enc", "W_dec", "b_enc", "b_dec", "threshold")


def read_gemma_scope(path: Path) -> Converted | None:
    """Return the autoencoder of a folder of Gemma Scope, or of its `params.npz`.

    Each feature has a threshold, and values that are not above the threshold become 0 (jumprelu). The decoder's bias is
    not subtracted from the input.

    Raise InputError for a damaged file, a missing tensor, a folder of another site than the residual stream, or a
    folder of Gemma Scope 2.

    Reference: Lieberum et al. (2024), Gemma Scope.
    """
    file = path if path.name == _FILE else path / _FILE
    if _SECOND in (path.name, *(entry.name for entry in path.glob(_SECOND))):
        raise unread_format("Gemma Scope 2")
    if not file.is_file():
        return None
    layer = _layer(file.resolve())
    tensors = {re.sub("^w_", "W_", name): tensor for name, tensor in _arrays(file).items()}
    weights = dict(zip(_TENSORS, required(tensors, *_TENSORS), strict=True))
    return Converted(weights, settings_of("jumprelu", layer))


def _layer(file: Path) -> int | None:
    for part in file.parts:
        site = _SITE.search(part)
        if site is not None or part == "embedding":
            name = "embedding" if site is None else site[1]
            raise InputError(f"the folder {part!r} is of the site {name}; only the residual stream (-res) is read here")
    layers = [match[1] for part in file.parts if (match := _LAYER.fullmatch(part))]
    return int(layers[-1]) if layers else None


def _arrays(file: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            array_by_name = {name: np.asarray(arrays[name]) for name in arrays.files}
    except (OSError, ValueError, EOFError, KeyError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(f"{_FILE} is not a whole archive of arrays: {error}") from None
    for name, array in array_by_name.items():
        if array.dtype.kind != "f":
            raise InputError(f"{name} is of {array.dtype}; floats are needed")
    return {name: array.astype(np.float32) for name, array in array_by_name.items()}
