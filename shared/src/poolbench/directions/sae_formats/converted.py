"""What a reader of another format returns, and how it reads sites, tensors and JSON."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from poolbench.errors import InputError, shown

#: The residual stream before a block is the one after the block before it; -1 is the embedding.
_RESIDUAL = re.compile(r"blocks\.(\d+)\.hook_resid_(pre|post)")
#: A whole block, as Hugging Face names it: its output is the residual stream after it.
_BLOCK = re.compile(r"(?:\w+\.)*(?:layers|h|blocks)\.(\d+)")
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


def residual_layer(site: object, what: str = "the autoencoder") -> int:
    """Return the layer whose output a site is, such as 7 for `blocks.7.hook_resid_post`.

    Raise InputError for a site outside the residual stream, such as `blocks.7.hook_mlp_out`. The message calls the
    reader of the site `what`.
    """
    residual = _RESIDUAL.fullmatch(str(site))
    if residual is not None:
        return int(residual[1]) - (residual[2] == "pre")
    block = _BLOCK.fullmatch(str(site))
    if block is None:
        raise InputError(
            f"{what} reads {shown(site)}; only the residual stream between blocks is read here, such as "
            "blocks.7.hook_resid_post"
        )
    return int(block[1])


def residual_site(layer: int) -> str:
    """Return the name of the residual stream after a layer."""
    return "blocks.0.hook_resid_pre" if layer == -1 else f"blocks.{layer}.hook_resid_post"


def layer_of(settings: Mapping[str, Any]) -> int | None:
    """Return the layer that a configuration names, or None if the configuration names no layer.

    Raise InputError if the site is not the residual stream.
    """
    nested = settings.get("metadata")
    hooks = {**(nested if isinstance(nested, dict) else {}), **settings}
    site, layer, head = (_of_hook(hooks, part) for part in ("name", "layer", "head_index"))
    if head is not None:
        raise InputError(f"the autoencoder reads head {shown(head)} of {shown(site)}; {_WHOLE}")
    if hooks.get("hook_name_out") not in (None, site):
        raise InputError(f"the autoencoder reads {shown(site)} and writes {shown(hooks['hook_name_out'])}; {_WHOLE}")
    if site is not None:
        return residual_layer(site)
    if layer is not None and (isinstance(layer, bool) or not isinstance(layer, int)):
        raise InputError(f"hook_layer of the autoencoder is {shown(layer)}; a whole number is needed")
    return layer


def _of_hook(settings: Mapping[str, Any], part: str) -> Any:
    """Return a setting of the hook. Older configurations use the names `hook_point`, `hook_point_layer` and so on."""
    older = "hook_point" if part == "name" else f"hook_point_{part}"
    setting = settings.get(f"hook_{part}")
    return settings.get(older) if setting is None else setting


_WHOLE = "it must read and write the whole residual stream at one place"


def read_tensors(weights: bytes, what: str = "the autoencoder") -> dict[str, np.ndarray]:
    """Return the tensors of a safetensors file in float32. Error messages call the owner of the tensors `what`.

    Raise InputError if the file is damaged or a tensor holds anything other than finite floats.
    """
    import safetensors

    try:
        entries = safetensors.deserialize(weights)
    except safetensors.SafetensorError as error:
        raise InputError(f"{what} is not a safetensors file: {error}") from None
    return {name: _tensor(f"tensor {name} of {what}", entry) for name, entry in entries}


def _tensor(name: str, entry: Mapping[str, Any]) -> np.ndarray:
    dtype, data = entry["dtype"], bytes(entry["data"])
    if dtype == "BF16":
        flat = (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    elif dtype in _DTYPES:
        flat = np.frombuffer(data, dtype=_DTYPES[dtype]).astype(np.float32)
    else:
        raise InputError(f"{name} is of {dtype}; floats are needed (F64, F32, F16, BF16)")
    if not np.isfinite(flat).all():
        raise InputError(f"{name} holds NaN or infinity")
    return flat.reshape(entry["shape"])


@dataclass(frozen=True)
class Converted:
    """An autoencoder in the canonical form."""

    tensors: Mapping[str, np.ndarray]  # W_enc [d_in, d_sae], W_dec [d_sae, d_in], b_dec [d_in], and others; float32
    settings: Mapping[str, Any]  # its configuration, without the sizes

    @classmethod
    def of(cls, tensors: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> Self:
        """Return an autoencoder from tensors of any float type and memory layout, which are copied to float32."""
        arrays = {name: np.ascontiguousarray(tensor, dtype=np.float32) for name, tensor in tensors.items()}
        return cls(arrays, settings)


def settings_of(architecture: str, layer: int | None, **others: Any) -> dict[str, Any]:
    """Return the configuration of an autoencoder of the residual stream."""
    site = {} if layer is None else {"hook_name": residual_site(layer), "hook_layer": layer}
    return {"architecture": architecture, "apply_b_dec_to_input": False, **site, **others}


def required(tensors: Mapping[str, Any], *names: str) -> tuple[Any, ...]:
    """Return the tensors of these names, in order. Raise InputError with the missing names."""
    missing = [name for name in names if name not in tensors]
    if missing:
        raise InputError(f"the tensors lack {', '.join(missing)}; they are {', '.join(sorted(tensors)) or 'none'}")
    return tuple(tensors[name] for name in names)


def matrix(tensors: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return the tensor of this name. Raise InputError if the tensor is missing or is not a matrix."""
    (tensor,) = required(tensors, name)
    if tensor.ndim != 2:
        raise InputError(f"{name} has shape {tensor.shape}; a matrix is needed")
    return np.asarray(tensor)


def row_norms(matrix_nD: np.ndarray) -> np.ndarray:
    """Return the norm of each row [n]. A row of zeros has no direction to scale and gets 1."""
    norms_n = np.linalg.norm(matrix_nD, axis=1)
    return np.where(norms_n > 0, norms_n, 1.0).astype(np.float32)


def scalar(value: Any, size: int) -> np.ndarray:
    """Return a number for each feature [size]."""
    return np.full(size, value, dtype=np.float32)


def unread_format(tool: str) -> InputError:
    """Return the error of files in the format of a tool that are not read here."""
    return InputError(
        f"these are files of {tool}, which are not read; read are those of SAELens, Gemma Scope (params.npz), Llama "
        "Scope and dictionary_learning: load them in SAELens and save them with its save_model"
    )


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raise InputError for anything else."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path.name} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InputError(f"{path.name} must hold an object, got {type(document).__name__}")
    return document
