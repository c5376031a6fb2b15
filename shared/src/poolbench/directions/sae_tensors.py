"""Tensors of a safetensors file, without torch."""

from collections.abc import Mapping
from typing import Any

import numpy as np

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
