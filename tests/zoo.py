"""Small models of the architectures that people use, with random weights, or with weights as training leaves them.

No pretrained model is needed to meet what pretrained models have: residual norms at the first token thousands of times
the median ("massive activations", Sun et al. 2024), dimensions that are large for every token, biases and norm weights
far from their initial values, and large logits.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
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
    Olmo2Config,
    OPTConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SiglipVisionConfig,
    StableLmConfig,
)

NUM_BLOCKS = 2
VOCABULARY = 400
#: The architectures of docs/models.md, as people call them.
NAMES = {
    "gpt2": "GPT-2",
    "neox": "GPT-NeoX (Pythia)",
    "opt": "OPT",
    "falcon": "Falcon",
    "stablelm": "StableLM",
    "phi3": "Phi-3",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "olmo2": "OLMo 2",
    "gemma2": "Gemma 2",
    "gemma3": "Gemma 3",
    "mixtral": "Mixtral",
    "llama": "Llama",
    "mistral": "Mistral",
}


@dataclass(frozen=True)
class Case:
    """One architecture: its configuration and what is special about it."""

    config: PreTrainedConfig
    attention: str = "sdpa"
    observed: bool = True


def cases(width: int = 32) -> dict[str, Case]:
    """Return the architectures with this width and four heads. Windows are shorter than passages."""
    old = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    base: dict[str, Any] = {
        **old,
        "hidden_size": width,
        "intermediate_size": 3 * width // 2,
        "num_hidden_layers": NUM_BLOCKS,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
    }
    grouped: dict[str, Any] = {**base, "num_key_value_heads": 2}
    wide: dict[str, Any] = {**grouped, "head_dim": width // 2}  # heads x head size differs from the width
    window: dict[str, Any] = {"sliding_window": 6}
    alternating: dict[str, Any] = {**window, "layer_types": ["sliding_attention", "full_attention"]}
    experts: dict[str, Any] = {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 3 * width // 4,
    }  # fmt: skip
    gpt2: dict[str, Any] = {**old, "n_embd": width, "n_layer": NUM_BLOCKS, "n_head": 4, "n_positions": 128}
    num_factors = width // 8
    longrope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * num_factors,
        "long_factor": [1.0 + index for index in range(num_factors)],
        "original_max_position_embeddings": 24,
    }
    return {
        "llama": Case(LlamaConfig(**wide)),
        "mistral": Case(MistralConfig(**wide, **window)),
        # The released cap: at scores of 88 times the cap, the exponential of vLLM overflows on CPUs with AVX-512.
        "gemma2": Case(Gemma2Config(**wide, **window, attn_logit_softcapping=50.0, query_pre_attn_scalar=24)),
        "gemma3": Case(Gemma3TextConfig(**wide, **alternating)),
        "gemma3_vision": Case(_gemma3_with_vision(Gemma3TextConfig(**wide, **alternating))),
        "qwen2": Case(Qwen2Config(**grouped)),  # as released; vLLM refuses the next one
        "qwen2_windows": Case(Qwen2Config(**grouped, **alternating, use_sliding_window=True)),
        "qwen3": Case(Qwen3Config(**wide)),
        "neox": Case(GPTNeoXConfig(**base)),
        "neox_serial": Case(GPTNeoXConfig(**base, use_parallel_residual=False)),
        "gpt2": Case(GPT2Config(**gpt2)),
        "gpt2_scaled": Case(GPT2Config(**gpt2, scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=True)),
        "phi": Case(PhiConfig(**base)),
        "phi3": Case(Phi3Config(**grouped, **window)),
        "phi3_longrope": Case(Phi3Config(**grouped, rope_parameters=longrope, original_max_position_embeddings=24)),
        "opt": Case(OPTConfig(**base, ffn_dim=2 * width, word_embed_proj_dim=width)),
        "opt_projected": Case(
            OPTConfig(**base, ffn_dim=2 * width, word_embed_proj_dim=width // 2, do_layer_norm_before=False)
        ),
        "stablelm": Case(StableLmConfig(**grouped, use_qkv_bias=True)),
        "olmo2": Case(Olmo2Config(**grouped)),
        "mixtral": Case(MixtralConfig(**wide, **window, num_local_experts=4)),
        "qwen2_moe": Case(Qwen2MoeConfig(**grouped, **experts, shared_expert_intermediate_size=3 * width // 4)),
        "qwen3_moe": Case(Qwen3MoeConfig(**wide, **experts)),
        "gpt_oss": Case(GptOssConfig(**wide, **alternating, num_local_experts=4), attention="eager"),
        "bloom": Case(BloomConfig(**old, hidden_size=width, n_layer=2, n_head=4), attention="eager", observed=False),
        "falcon": Case(FalconConfig(**base), observed=False),
        "gptj": Case(GPTJConfig(**gpt2, rotary_dim=4), attention="eager", observed=False),
        "mamba": Case(
            MambaConfig(**old, hidden_size=width, num_hidden_layers=NUM_BLOCKS, state_size=4),
            attention="eager",
            observed=False,
        ),
    }


def _gemma3_with_vision(text: Gemma3TextConfig) -> PreTrainedConfig:
    """Return a conditional-generation wrapper whose vision tower is exactly as deep as its text decoder."""
    vision = SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8
    )
    return Gemma3Config(text_config=text.to_dict(), vision_config=vision.to_dict(), mm_tokens_per_image=4)


def random_model(case: Case, attention: str | None = None) -> Any:
    """Return the case's model with random weights, large enough that layers, heads and experts differ."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(case.config, attn_implementation=attention or case.attention)
    std = 0.15 * (32 / model.config.get_text_config().hidden_size) ** 0.5
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=std)
    return model


OUTLIERS = (3, 17)  # dimensions
_SINK = 300_000.0  # norm of a sink's embedding, in median norms of embeddings
_OUTLIER = 200.0  # of every token in these dimensions, in standard deviations
_NORM_WEIGHT = 4.0
_LOGIT = 80.0  # largest


def trained_like(model: Any, sink_ids: Sequence[int], seed: int = 0) -> Any:
    """Give random weights the extremes that training leaves, in place; return the model.

    Norm weights are small in the outlier dimensions, as in trained models, so that the other ones still matter. Those
    of the last norm are 0: with tied embeddings the sinks would be the likeliest, or unlikeliest, next tokens.

    Args:
        sink_ids: Tokens whose residual stream becomes thousands of times as large as the median.
    """
    generator = torch.Generator().manual_seed(seed)
    offset = 1.0 if "gemma" in model.config.model_type else 0.0  # its norms scale by 1 + weight
    with torch.no_grad():
        table_VD = model.get_input_embeddings().weight
        std, median = table_VD.std(), table_VD.norm(dim=1).median()
        table_VD[:, list(OUTLIERS)] += _OUTLIER * std
        table_VD[torch.tensor(sink_ids)[:, None], torch.tensor(OUTLIERS)] = _SINK * median
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and name.endswith("bias"):
                parameter.normal_(std=0.1, generator=generator)
                if _is_final(name):
                    parameter[list(OUTLIERS)] = 0
            elif parameter.dim() == 1 and ("q_norm" in name or "k_norm" in name):
                _scale(parameter, torch.empty_like(parameter).log_normal_(std=0.4, generator=generator), offset)
            elif parameter.dim() == 1:
                factors_D = torch.empty_like(parameter).log_normal_(std=0.4, generator=generator) * _NORM_WEIGHT
                factors_D[list(OUTLIERS)] = 0 if _is_final(name) else 0.05
                _scale(parameter, factors_D, offset)
        ids_T = torch.arange(5, 60)
        largest = model(ids_T[None], use_cache=False).logits.abs().max()
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and _is_final(name) and not name.endswith("bias"):
                _scale(parameter, _LOGIT / largest, offset)
    return model


def _is_final(name: str) -> bool:
    return not any(part in name for part in (".layers.", ".h."))


def _scale(weight_D: torch.Tensor, factor: torch.Tensor, offset: float) -> None:
    weight_D.copy_((weight_D + offset) * factor - offset)


def blocks_of(model: Any) -> list[Any]:
    """Return the decoder blocks of a model of the zoo."""
    (found,) = (
        module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == NUM_BLOCKS and "vision" not in name
    )
    return list(found)


@contextmanager
def watched(model: Any) -> Iterator[list[torch.Tensor]]:
    """Yield a list that gets the output of each decoder block, [1, T, D], during a forward pass."""
    streams: list[torch.Tensor] = []

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        streams.append((output[0] if isinstance(output, tuple) else output).detach().clone())

    handles = [block.register_forward_hook(keep) for block in blocks_of(model)]
    try:
        yield streams
    finally:
        for handle in handles:
            handle.remove()
