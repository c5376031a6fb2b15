"""Every architecture by its real Transformers class, small and random. Passages are longer than the windows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import processors
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTJConfig,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    MixtralConfig,
    OPTConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SiglipVisionConfig,
)

from poolbench_extractor.encode import Encoded, encode
from poolbench_extractor.models.decoder import Decoder, wrap_decoder

BASE: dict[str, Any] = {
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
GROUPED: dict[str, Any] = {**BASE, "num_key_value_heads": 2}
WIDE: dict[str, Any] = {**GROUPED, "head_dim": 16}  # heads x head size differs from the width
WINDOW: dict[str, Any] = {"sliding_window": 6}
ALTERNATING: dict[str, Any] = {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
OLD: dict[str, Any] = {name: BASE[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
GPT2: dict[str, Any] = {**OLD, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [1.0, 2.0, 3.0, 4.0],
    "original_max_position_embeddings": 24,
}


@dataclass(frozen=True)
class Case:
    """One architecture: its configuration and what is special about it."""

    config: PreTrainedConfig
    attention: str = "sdpa"
    observed: bool = True
    first_output: int = 1  # where its `hidden_states` have the output of block 0; most begin with the embedding


def gemma3_with_vision() -> PreTrainedConfig:
    """A conditional-generation wrapper whose vision tower is exactly as deep as its text decoder."""
    vision = SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8
    )
    text = Gemma3TextConfig(**WIDE, **ALTERNATING)
    return Gemma3Config(text_config=text.to_dict(), vision_config=vision.to_dict(), mm_tokens_per_image=4)


CASES: dict[str, Case] = {
    "llama": Case(LlamaConfig(**WIDE)),
    "mistral": Case(MistralConfig(**WIDE, **WINDOW)),
    "gemma2": Case(Gemma2Config(**WIDE, **WINDOW, attn_logit_softcapping=2.0, query_pre_attn_scalar=24)),
    "gemma3": Case(Gemma3TextConfig(**WIDE, **ALTERNATING)),
    "gemma3_vision": Case(gemma3_with_vision()),
    "qwen2": Case(Qwen2Config(**GROUPED, **ALTERNATING, use_sliding_window=True)),
    "qwen3": Case(Qwen3Config(**WIDE)),
    "neox": Case(GPTNeoXConfig(**BASE)),
    "neox_serial": Case(GPTNeoXConfig(**BASE, use_parallel_residual=False)),
    "gpt2": Case(GPT2Config(**GPT2)),
    "gpt2_scaled": Case(GPT2Config(**GPT2, scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=True)),
    "phi": Case(PhiConfig(**BASE)),
    "phi3": Case(Phi3Config(**GROUPED, **WINDOW)),
    "phi3_longrope": Case(Phi3Config(**GROUPED, rope_parameters=LONGROPE, original_max_position_embeddings=24)),
    "opt": Case(OPTConfig(**BASE, ffn_dim=64, word_embed_proj_dim=32)),
    "opt_projected": Case(OPTConfig(**BASE, ffn_dim=64, word_embed_proj_dim=16, do_layer_norm_before=False)),
    "mixtral": Case(MixtralConfig(**WIDE, **WINDOW, num_local_experts=4)),
    "qwen2_moe": Case(Qwen2MoeConfig(**GROUPED, **EXPERTS, shared_expert_intermediate_size=24)),
    "qwen3_moe": Case(Qwen3MoeConfig(**WIDE, **EXPERTS)),
    "gpt_oss": Case(GptOssConfig(**WIDE, **ALTERNATING, num_local_experts=4), attention="eager"),  # attention sinks
    "bloom": Case(BloomConfig(**OLD, hidden_size=32, n_layer=2, n_head=4), attention="eager", observed=False),
    "falcon": Case(FalconConfig(**BASE), observed=False),
    "gptj": Case(GPTJConfig(**GPT2, rotary_dim=4), attention="eager", observed=False),
    "mamba": Case(
        MambaConfig(**OLD, hidden_size=32, num_hidden_layers=2, state_size=4),
        attention="eager",
        observed=False,
        first_output=0,
    ),
}
LAYERS = (0, 1)


def make(case: Case, tokenizer: Any, dtype: str = "float32", attention: str | None = None) -> Decoder:
    """The case's model with random weights, large enough that layers, heads and experts differ."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(case.config, attn_implementation=attention or case.attention)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.15)
    return wrap_decoder(model.to(getattr(torch, dtype)), tokenizer)


@pytest.fixture(scope="module")
def tokenizer(llama: Decoder) -> Any:
    return llama.tokenizer


@pytest.fixture(scope="module")
def without_bos(tokenizer: Any) -> Any:
    """The same tokenizer, adding nothing."""
    bare = copy.deepcopy(tokenizer)
    bare._tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return bare


@pytest.fixture(scope="module")
def decoder_of(tokenizer: Any) -> Callable[[str], Decoder]:
    """Float32 decoders by name, each made once."""
    made: dict[str, Decoder] = {}

    def get(name: str) -> Decoder:
        if name not in made:
            made[name] = make(CASES[name], tokenizer)
        return made[name]

    return get


def encoded(decoder: Decoder, texts: Sequence[str]) -> list[Encoded]:
    return encode(decoder, texts, texts)  # ids that stay with their texts: they seed A7


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
