"""Weights of a shipped scorer as 8-bit differences from its base, which are a quarter as large as the weights."""

from collections.abc import Mapping

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

#: Numbers of a matrix, in order, that share a scale. With one scale per row, scores of some scorers moved by .0014.
GROUP = 64
_SCALE = ".scale"
_LARGEST = 127


def pack(weights: bytes, base: Mapping[str, Tensor]) -> bytes:
    """Compress trained tensors: matrices become 8-bit differences from the base, all other tensors float16.

    Args:
        weights: A safetensors file.
        base: The tensors of the base by name. The classifier of the base is random, so the trained one is stored in
            float16 instead.
    """
    tensors = dict[str, Tensor]()
    for name, tensor in load_tensors(weights).items():
        if tensor.ndim < 2 or name.startswith("classifier."):
            tensors[name] = tensor.half()
            continue
        difference_GN = (tensor.float() - base[name]).reshape(-1, GROUP)
        scale_G1 = (difference_GN.abs().amax(dim=1, keepdim=True) / _LARGEST).half()
        steps_GN = difference_GN / scale_G1.float().clamp_min(torch.finfo(torch.half).smallest_normal)
        tensors[name] = steps_GN.round().clamp(-_LARGEST, _LARGEST).to(torch.int8).reshape(tensor.shape)
        tensors[name + _SCALE] = scale_G1[:, 0]
    return save_tensors(tensors)


def unpack(packed: bytes, base: Mapping[str, Tensor]) -> bytes:
    """Decompress the result of `pack` to float32 tensors, in the format that training writes."""
    packed_tensors = load_tensors(packed)
    tensors = dict[str, Tensor]()
    for name, tensor in packed_tensors.items():
        if (scale_G := packed_tensors.get(name + _SCALE)) is not None:
            difference_GN = tensor.float().reshape(-1, GROUP) * scale_G.float()[:, None]
            tensors[name] = base[name] + difference_GN.reshape(tensor.shape)
        elif not name.endswith(_SCALE):
            tensors[name] = tensor.float()
    return save_tensors(tensors)
