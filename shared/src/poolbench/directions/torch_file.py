"""Tensors that torch.save wrote: read by its weights-only loader, which refuses any other object."""

from pathlib import Path
from typing import Any

import numpy as np

from poolbench.errors import InputError


def load_torch(path: Path) -> dict[Any, np.ndarray]:
    """Return the tensors of a file by name. If the file is a single tensor, its name is `tensor`.

    Raises:
        InputError: The file is damaged, or holds anything other than tensors.
    """
    tensors, facts = load_torch_record(path)
    if facts:
        raise InputError(f"{path.name} holds no tensors by name")
    return tensors


def load_torch_record(path: Path) -> tuple[dict[Any, np.ndarray], dict[str, Any]]:
    """Return the tensors of a file by name, and the texts and numbers stored beside the tensors.

    If the file is a single tensor, its name is `tensor`.

    Raises:
        InputError: The file is damaged, or holds other objects.
    """
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file, or one with other objects, raises errors of many kinds
        first = str(error).strip().partition("\n")[0].partition(". ")[0]
        raise InputError(f"{path.name} cannot be read as tensors alone: {type(error).__name__}: {first}") from None
    entries = {"tensor": content} if isinstance(content, torch.Tensor) else content
    tensors, facts = dict[Any, np.ndarray](), dict[str, Any]()
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        if isinstance(entry, torch.Tensor):
            tensors[name] = entry.detach().float().numpy()
        elif isinstance(entry, str | int | float):
            facts[str(name)] = entry
        else:
            tensors.clear()
            break
    if not tensors:
        raise InputError(f"{path.name} holds no tensors by name")
    return tensors, facts
