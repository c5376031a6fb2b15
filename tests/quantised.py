"""Quantised checkpoints of a Llama, in the forms that people publish, and the model of the numbers that they stand for.

Weights are rounded and packed here, because the libraries that write these forms need a GPU or other versions of torch.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

#: Numbers in one group of weights that share a scale.
_GROUP = 64
_BLOCK = 128
Tensors = dict[str, torch.Tensor]


def quantised_llama(form: str, folder: Path, seed: int = 0) -> LlamaForCausalLM:
    """Write a checkpoint of a random Llama; return a float32 model with the same numbers.

    Args:
        form: One of `FORMS`.
        folder: The folder that gets weights and configuration; it may hold a tokenizer already.
        seed: Seed of the weights.
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=4096, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=128, bos_token_id=0, eos_token_id=1, pad_token_id=1,
        initializer_range=0.08, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).float().eval()
    method, pack = FORMS[form]
    tensors: Tensors = {}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("_proj.weight"):
                packed, numbers = pack(weight)
                weight.copy_(numbers)
                tensors |= {f"{name.removesuffix('weight')}{part}": tensor for part, tensor in packed.items()}
            else:
                tensors[name] = weight.clone()
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**written, "dtype": "bfloat16", "quantization_config": method}))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return model


def _int8(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """One scale for each row: compressed-tensors, W8A8."""
    scale = weight.abs().amax(1, keepdim=True) / 127
    whole = (weight / scale).round()
    return {"weight": whole.to(torch.int8), "weight_scale": scale}, whole * scale


def _fp8(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """One scale for each block of 128 by 128, as DeepSeek publishes."""
    rows, columns = weight.shape
    blocks = weight.view(rows // _BLOCK, _BLOCK, columns // _BLOCK, _BLOCK)
    scale = blocks.abs().amax((1, 3), keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
    small = (blocks / scale).to(torch.float8_e4m3fn)
    numbers = (small.float() * scale).view(rows, columns)
    return {"weight": small.view(rows, columns), "weight_scale_inv": scale[:, 0, :, 0]}, numbers


def _int4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return whole numbers of 0 to 15 whose zero is 8, [O, I]; scales, [O, groups]; and the numbers that they mean."""
    groups = weight.view(len(weight), -1, _GROUP)
    scale = (groups.abs().amax(2) / 7).half().float()
    whole = (groups / scale[:, :, None]).round().clamp(-8, 7)
    return whole.view_as(weight).int() + 8, scale, (whole * scale[:, :, None]).view_as(weight)


def _packed(whole: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Join eight numbers of 4 bits of the last axis into one of 32, the first of `order` in the lowest bits."""
    parts = whole.view(*whole.shape[:-1], -1, 8)[..., list(order)].to(torch.int64)
    joined = (parts << torch.arange(0, 32, 4)).sum(-1)  # no two of them share a bit
    return torch.where(joined >= 2**31, joined - 2**32, joined).to(torch.int32)


def _packed4(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    whole, scale, numbers = _int4(weight)
    return {
        "weight_packed": _packed(whole), "weight_scale": scale, "weight_shape": torch.tensor(weight.shape),
    }, numbers  # fmt: skip


def _gptq(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    whole, scale, numbers = _int4(weight)
    zeros = torch.full((scale.shape[1], len(weight)), 7)  # this form stores a zero point less one
    groups = torch.arange(weight.shape[1], dtype=torch.int32) // _GROUP
    parts = {"qweight": _packed(whole).T, "qzeros": _packed(zeros), "scales": scale.T.half(), "g_idx": groups}
    return parts, numbers


def _awq(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    whole, scale, numbers = _int4(weight)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    zeros = torch.full((scale.shape[1], len(weight)), 8)
    return {
        "qweight": _packed(whole.T.contiguous(), order), "qzeros": _packed(zeros, order), "scales": scale.T.half(),
    }, numbers  # fmt: skip


def _compressed(kind: str, weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors", "format": kind, "quantization_status": "compressed",
        "ignore": ["lm_head"], "config_groups": {"group_0": group},
    }  # fmt: skip


_INTEGER = {"type": "int", "symmetric": True}
_W8 = {**_INTEGER, "num_bits": 8, "strategy": "channel", "dynamic": False}
_A8 = {**_INTEGER, "num_bits": 8, "strategy": "token", "dynamic": True}
_W4 = {**_INTEGER, "num_bits": 4, "strategy": "group", "group_size": _GROUP, "dynamic": False}
_OF_4 = {"bits": 4, "group_size": _GROUP}
#: Each form: its `quantization_config`, and what makes the tensors of a weight.
FORMS: dict[str, tuple[dict[str, Any], Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]]] = {
    "w8a8": (_compressed("int-quantized", _W8, _A8), _int8),
    "w4a16": (_compressed("pack-quantized", _W4), _packed4),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [_BLOCK, _BLOCK], "activation_scheme": "dynamic"}, _fp8),
    "gptq": ({**_OF_4, "quant_method": "gptq", "desc_act": False, "sym": True}, _gptq),
    "awq": ({**_OF_4, "quant_method": "awq", "zero_point": True, "version": "gemm"}, _awq),
}
