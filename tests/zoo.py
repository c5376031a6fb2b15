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
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig

NUM_BLOCKS = 2
VOCABULARY = 400

Settings = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A small model: its type in Transformers, the settings that are not the default, and what is special about it."""

    model_type: str
    settings: Settings
    attention: str = "sdpa"
    observed: bool = True

    @property
    def config(self) -> PreTrainedConfig:
        """Return the configuration, which some models change."""
        return CONFIG_MAPPING[self.model_type](**self.settings)


class Shapes:
    """Settings that many architectures share: this width, two blocks and four heads."""

    def __init__(self, width: int) -> None:
        self.tokens: Settings = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
        self.base: Settings = {
            **self.tokens,
            "hidden_size": width,
            "intermediate_size": 3 * width // 2,
            "num_hidden_layers": NUM_BLOCKS,
            "num_attention_heads": 4,
            "max_position_embeddings": 128,
        }
        self.gpt2: Settings = {**self.tokens, "n_embd": width, "n_layer": NUM_BLOCKS, "n_head": 4, "n_positions": 128}
        self.grouped: Settings = {**self.base, "num_key_value_heads": 2}
        self.wide: Settings = {**self.grouped, "head_dim": width // 2}  # heads x head size differs from the width


#: Shorter than passages.
WINDOW: Settings = {"sliding_window": 6}
ALTERNATING: Settings = {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]}


def architectures(width: int = 32) -> dict[str, Case]:
    """Return the architectures of docs/models.md with this width, by model type."""
    shapes = Shapes(width)
    base, grouped, wide = shapes.base, shapes.grouped, shapes.wide
    local_experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 3 * width // 4}
    shared_expert = {**experts, "shared_expert_intermediate_size": 3 * width // 4}
    routed = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 3 * width // 4}
    multipliers = {
        "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.1, "logits_scaling": 2.0,
    }  # fmt: skip
    # The released cap: at scores of 88 times the cap, the exponential of vLLM overflows on CPUs with AVX-512.
    capped = {"attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 24}
    rows = [
        Case("arcee", wide),
        Case("bloom", {**shapes.tokens, "hidden_size": width, "n_layer": 2, "n_head": 4}, "eager", observed=False),
        Case("cohere", grouped),
        # Longer than the texts: the windows of vLLM are one token wider than those of Transformers.
        Case("cohere2", {**wide, **ALTERNATING, "sliding_window": 64}),
        Case("ernie4_5", wide),
        Case("exaone4", {**wide, **ALTERNATING}),
        Case("falcon", base, observed=False),
        Case("gemma", wide),
        Case("gemma2", {**wide, **WINDOW, **capped}),
        Case("gemma3_text", {**wide, **ALTERNATING}),
        Case("glm", wide),
        Case("glm4", wide),
        Case("glm4_moe", {**wide, **routed, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}),
        Case("gpt2", shapes.gpt2),
        Case("gpt_bigcode", shapes.gpt2),
        Case("gpt_neox", base),
        Case("gpt_oss", {**wide, **ALTERNATING, **local_experts}, "eager"),
        Case("gptj", {**shapes.gpt2, "rotary_dim": 4}, "eager", observed=False),
        Case("granite", {**grouped, **multipliers}),
        Case("granitemoe", {**grouped, **local_experts, **multipliers}),
        Case("helium", {**grouped, "head_dim": width // 4}),
        Case("hunyuan_v1_dense", wide),
        Case("hyperclovax", {**wide, **multipliers}),
        Case("llama", wide),
        Case("ministral3", wide),
        Case("mistral", {**wide, **WINDOW}),
        Case("mixtral", {**wide, **WINDOW, **local_experts}),
        Case("nemotron", wide),
        Case("olmo", grouped),
        Case("olmo2", grouped),
        Case("olmo3", {**grouped, **ALTERNATING}),
        Case("olmoe", {**grouped, **experts}),
        Case("opt", {**base, "ffn_dim": 2 * width, "word_embed_proj_dim": width}),
        Case("phi", base),
        Case("phi3", {**grouped, **WINDOW}),
        Case("qwen2", grouped),  # as released; vLLM refuses windows
        Case("qwen2_moe", {**grouped, **shared_expert}),
        Case("qwen3", wide),
        Case("qwen3_moe", {**wide, **experts}),
        Case("seed_oss", wide),
        Case("smollm3", grouped),
        Case("stablelm", {**grouped, "use_qkv_bias": True}),
        Case("starcoder2", {**grouped, **WINDOW}),
        Case("vaultgemma", {**wide, **ALTERNATING, **capped}),
    ]
    return {row.model_type: row for row in rows}


def variants(width: int = 32) -> dict[str, Case]:
    """Return models with rarer settings, and a recurrent model, which only the extractor reads."""
    shapes = Shapes(width)
    num_factors = width // 8
    longrope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * num_factors,
        "long_factor": [1.0 + index for index in range(num_factors)],
        "original_max_position_embeddings": 24,
    }
    siglip = {
        "model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 16, "patch_size": 8,
    }  # fmt: skip
    text = {"model_type": "gemma3_text", **shapes.wide, **ALTERNATING}
    projected = {"ffn_dim": 2 * width, "word_embed_proj_dim": width // 2, "do_layer_norm_before": False}
    stretched = {"rope_parameters": longrope, "original_max_position_embeddings": 24}
    scaled = {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}
    recurrent = {**shapes.tokens, "hidden_size": width, "num_hidden_layers": NUM_BLOCKS, "state_size": 4}
    return {
        # Its vision tower is exactly as deep as its text decoder.
        "gemma3_vision": Case("gemma3", {"text_config": text, "vision_config": siglip, "mm_tokens_per_image": 4}),
        "gpt2_scaled": Case("gpt2", {**shapes.gpt2, **scaled}),
        "mamba": Case("mamba", recurrent, "eager", observed=False),
        "neox_serial": Case("gpt_neox", {**shapes.base, "use_parallel_residual": False}),
        "opt_projected": Case("opt", {**shapes.base, **projected}),
        "phi3_longrope": Case("phi3", {**shapes.grouped, **stretched}),
        "qwen2_windows": Case("qwen2", {**shapes.grouped, **ALTERNATING, "use_sliding_window": True}),
    }


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
    ones = ("gemma", "nemotron")  # norms that scale by 1 + weight
    offset = 1.0 if any(name in model.config.model_type for name in ones) else 0.0
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
            elif parameter.dim() == 1 and (len(parameter) != table_VD.shape[1] or "q_norm" in name or "k_norm" in name):
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
