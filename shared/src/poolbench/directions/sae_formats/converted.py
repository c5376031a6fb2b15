"""What a reader of another format returns, and how it reads tensors and JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from poolbench.directions.sae_sites import residual_site
from poolbench.errors import InputError

_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


def read_tensors(weights: bytes) -> dict[str, np.ndarray]:
    """Return the tensors of a safetensors file in float32. Raise InputError unless all hold finite floats."""
    import safetensors

    try:
        entries = safetensors.deserialize(weights)
    except safetensors.SafetensorError as error:
        raise InputError(f"the autoencoder's weights are not a safetensors file: {error}") from None
    return {name: _tensor(name, entry) for name, entry in entries}


def _tensor(name: str, entry: Mapping[str, Any]) -> np.ndarray:
    dtype, data = entry["dtype"], bytes(entry["data"])
    if dtype == "BF16":
        flat = (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    elif dtype in _DTYPES:
        flat = np.frombuffer(data, dtype=_DTYPES[dtype]).astype(np.float32)
    else:
        raise InputError(f"tensor {name} of the autoencoder is of {dtype}; floats are needed (F64, F32, F16, BF16)")
    if not np.isfinite(flat).all():
        raise InputError(f"tensor {name} of the autoencoder holds NaN or infinity")
    return flat.reshape(entry["shape"])


@dataclass(frozen=True)
class Converted:
    """An autoencoder in the canonical form."""

    tensors: Mapping[str, np.ndarray]  # W_enc [d_in, d_sae], W_dec [d_sae, d_in], b_dec [d_in], and others; float32
    settings: Mapping[str, Any]  # its configuration, without the sizes

    @classmethod
    def of(cls, tensors: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> Self:
        """Return an autoencoder from tensors of any float and layout."""
        arrays = {name: np.ascontiguousarray(tensor, dtype=np.float32) for name, tensor in tensors.items()}
        return cls(arrays, settings)


def settings_of(architecture: str, layer: int | None, **others: Any) -> dict[str, Any]:
    """Return the configuration of an autoencoder of the residual stream."""
    site = {} if layer is None else {"hook_name": residual_site(layer), "hook_layer": layer}
    return {"architecture": architecture, "apply_b_dec_to_input": False, **site, **others}


def required(tensors: Mapping[str, Any], *names: str) -> tuple[Any, ...]:
    """Return some of the tensors. Raise InputError for those that are missing."""
    missing = [name for name in names if name not in tensors]
    if missing:
        raise InputError(f"the tensors lack {', '.join(missing)}; they are {', '.join(sorted(tensors)) or 'none'}")
    return tuple(tensors[name] for name in names)


def matrix(tensors: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return a tensor that must be a matrix. Raise InputError for another one."""
    (tensor,) = required(tensors, name)
    if tensor.ndim != 2:
        raise InputError(f"{name} has shape {tensor.shape}; a matrix is needed")
    return np.asarray(tensor)


def row_norms(matrix_nD: np.ndarray) -> np.ndarray:
    """Return the norm of each row [n]; 1 for a row of zeros, which has no direction to scale."""
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
