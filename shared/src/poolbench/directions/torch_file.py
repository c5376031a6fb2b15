"""Tensors that torch.save wrote: read by its weights-only loader, which refuses any other object."""

from pathlib import Path
from typing import Any

import numpy as np

from poolbench.errors import InputError


def load_torch(path: Path) -> dict[Any, np.ndarray]:
    """Return the tensors of a file by name; a single one as `tensor`.

    Raises:
        InputError: The file is damaged, or holds anything else than tensors.
    """
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file, or one with other objects, raises errors of many kinds
        first = str(error).strip().partition("\n")[0].partition(". ")[0]
        raise InputError(f"{path.name} cannot be read as tensors alone: {type(error).__name__}: {first}") from None
    tensors = {"tensor": content} if isinstance(content, torch.Tensor) else content
    if not isinstance(tensors, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        raise InputError(f"{path.name} holds no tensors by name")
    return {name: tensor.detach().float().numpy() for name, tensor in tensors.items()}
