"""The parts of a loaded model that steering needs: its decoder blocks, and the norm behind the last."""

from __future__ import annotations

import torch


def decoder_blocks(model: torch.nn.Module, num_layers: int) -> list[torch.nn.Module]:
    """The decoder blocks of a model: its only module list of ``num_layers`` entries.

    Raises:
        RuntimeError: When there is none or more than one.
    """
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == num_layers
    ]
    if len(found) != 1:
        names = ", ".join(name for name, _ in found) or "none"
        raise RuntimeError(f"expected one list of {num_layers} blocks in {type(model).__name__}, found: {names}")
    return list(found[0][1])


def final_norm(model: torch.nn.Module) -> torch.nn.Module:
    """The norm between the last block and the LM head."""
    for name in ("norm", "final_layernorm", "final_layer_norm", "ln_f", "final_norm"):
        for path, module in model.named_modules():
            if path.count(".") <= 2 and path.split(".")[-1] == name:
                return module
    raise RuntimeError(f"no final norm found in {type(model).__name__}; the steering self-test needs it")
