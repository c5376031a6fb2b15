"""Every architecture by its real Transformers class: states, inflow and invariance against independent references.

Passages are longer than the sliding windows. References come from the eager model on each passage alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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

from poolbench.contracts.tables import vector_matrix
from poolbench.pooling import all_strategies
from poolbench.pooling.batch import Request
from poolbench_extractor.batching import make_batches
from poolbench_extractor.capture import capture
from poolbench_extractor.checks import pads_left, probe
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.core import extract_encoded
from poolbench_extractor.encode import Encoded, encode
from poolbench_extractor.model import Decoder, wrap_decoder

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
#: The widest relative change of a vector that another batch may cause.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-2}
WEIGHTED = [
    Request.of(spec.id) for spec in all_strategies() if spec.implemented and set(spec.needs) <= {"inflow", "norms"}
]
NEIGHBOURS = ["alpha beta gamma delta " * 6, "x"]


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


def inflow_by_definition(attention_HTT: np.ndarray, real_T: np.ndarray) -> np.ndarray:
    """Position-corrected inflow over real tokens, from the model's own attention."""
    A_HTT = attention_HTT[:, real_T][:, :, real_T].astype(np.float64)
    A_HTT = A_HTT / A_HTT.sum(-1, keepdims=True)
    rank_T = np.arange(A_HTT.shape[1])
    inflow = np.zeros(len(real_T))
    inflow[real_T] = np.einsum("hqj,q->j", A_HTT, rank_T + 1.0) / len(A_HTT) / (len(rank_T) - rank_T)
    return inflow


def eager_outputs(decoder: Decoder, passages: Sequence[Encoded], *, attentions: bool) -> list[Any]:
    """What the model itself returns for each passage alone, with the attention that materialises its matrix."""
    model = copy.deepcopy(decoder.model)
    if attentions:
        model.set_attn_implementation("eager")
    with torch.inference_mode():
        return [
            model(
                torch.from_numpy(passage.token_ids)[None],
                output_hidden_states=True,
                use_cache=False,
                **({"output_attentions": True} if attentions else {}),
            )
            for passage in passages
        ]


@pytest.mark.parametrize("name", sorted(CASES))
def test_states_and_inflow_are_the_models_own(
    name: str, decoder_of: Callable[[str], Decoder], texts: list[str]
) -> None:
    decoder = decoder_of(name)
    assert decoder.observed is CASES[name].observed
    assert (decoder.num_blocks, decoder.width) == (2, 32)
    passages = encoded(decoder, texts)
    norm = final_norm(decoder)
    for side in ("right", "left"):
        read = capture_all(decoder, passages, side)
        for index, output in enumerate(eager_outputs(decoder, passages, attentions=decoder.observed)):
            own = output.hidden_states
            assert relative(read[index, 0].state.numpy(), own[CASES[name].first_output][0].numpy()) < 1e-5
            # Theirs ends behind the last norm.
            assert relative(norm(read[index, 1].state).numpy(), own[2][0].numpy()) < 1e-5
            for layer in LAYERS if decoder.observed else ():
                real = ~passages[index].context.special
                expected = inflow_by_definition(output.attentions[layer][0].numpy(), real)
                assert relative(read[index, layer].signals["inflow"], expected) < 1e-5, (side, layer, index)


class Read(NamedTuple):
    """What one capture gave of one passage at one layer."""

    state: torch.Tensor
    signals: Any


def capture_all(decoder: Decoder, passages: Sequence[Encoded], side: str = "right") -> dict[tuple[int, int], Read]:
    """States and inflow by passage and layer, in as few batches as the model allows."""
    found = {}
    for batch in make_batches(passages, BatchLimits()):
        captured = capture(decoder, batch, LAYERS, signals=dict.fromkeys(LAYERS, ("inflow",)), padding_side=side)
        for layer in LAYERS:
            rows = map(Read, captured.states_of(layer), captured.signals_of(layer))
            found |= {(passage.index, layer): row for passage, row in zip(batch, rows, strict=True)}
    return found


def final_norm(decoder: Decoder) -> Callable[[torch.Tensor], torch.Tensor]:
    """What the model does to the last block's output before it returns it."""
    names = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "norm_f", "project_out")
    found = [getattr(decoder.backbone, name, None) for name in names]
    steps = [module for module in found if module is not None]
    assert len(steps) == 1
    return torch.inference_mode()(steps[0])


@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
@pytest.mark.parametrize("name", sorted(CASES))
def test_no_vector_depends_on_its_batch(
    name: str, dtype: str, tokenizer: Any, without_bos: Any, texts: list[str]
) -> None:
    """Batches of one, padding on the left, other neighbours and another order, for every weighted strategy."""
    decoder = make(CASES[name], without_bos if dtype == "bfloat16" else tokenizer, dtype)
    expected = pooled(decoder, texts, BatchLimits())
    assert expected
    variants = [
        pooled(decoder, texts, BatchLimits(max_passages=1)),
        pooled(decoder, [*NEIGHBOURS, *texts[::-1]], BatchLimits(max_passages=3)),
        pooled(decoder, texts, BatchLimits(padding_side="left")),
    ]
    for variant in variants:
        for key, vector in expected.items():
            assert relative(variant[key], vector) <= TOLERANCE[dtype], key


def pooled(decoder: Decoder, texts: Sequence[str], limits: BatchLimits) -> dict[tuple[str, str], np.ndarray]:
    """Vectors by strategy, layer and text; strategies that need what the model does not show are left out."""
    requests = [request for request in WEIGHTED if decoder.observed or "inflow" not in request.strategy.needs]
    tables = extract_encoded(decoder, encoded(decoder, texts), dict.fromkeys(LAYERS, requests), limits=limits)
    found = {}
    for role, table in tables.items():
        assert set(table["status"].to_pylist()) == {"ok"}, role
        found |= {(role, text): row for text, row in zip(texts, vector_matrix(table["vector"]), strict=True)}
    return found


@pytest.mark.parametrize("name", ["bloom", "mamba"])
def test_without_visible_attention_the_rest_goes_on(
    name: str, decoder_of: Callable[[str], Decoder], texts: list[str]
) -> None:
    decoder = decoder_of(name)
    wanted = {1: [Request.of("A1_mean"), Request.of("S1_attention")]}
    tables = extract_encoded(decoder, encoded(decoder, texts), wanted)
    assert set(tables["A1_mean/1"]["status"].to_pylist()) == {"ok"}
    assert set(tables["S1_attention/1"]["status"].to_pylist()) == {"failed"}
    assert "cannot be observed" in tables["S1_attention/1"]["reason"][0].as_py()


class Recurrent(torch.nn.Module):
    """Sums what came before and knows no mask, like the recurrent models that cannot be padded on the left."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 4)
        self.blocks = torch.nn.ModuleList([torch.nn.Identity()])

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None, use_cache: bool = False) -> torch.Tensor:
        return self.blocks[0](self.embedding(input_ids).cumsum(1))


def test_a_model_that_reads_padding_is_found_out() -> None:
    torch.manual_seed(0)
    model, cpu = Recurrent(), torch.device("cpu")
    assert probe(model, model.blocks, cpu).causal and not probe(model, model.blocks, cpu).observed
    assert not pads_left(model, model.blocks, cpu, positions=False)


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "qwen3_moe"])
@pytest.mark.parametrize("experts", ["eager", "batched_mm", "grouped_mm"])
def test_routing_does_not_depend_on_neighbours(
    name: str, experts: str, decoder_of: Callable[[str], Decoder], texts: list[str]
) -> None:
    decoder = decoder_of(name)
    decoder.model.set_experts_implementation(experts)
    passages = encoded(decoder, [*texts, *NEIGHBOURS])
    batch = capture(decoder, passages, [1]).states_of(1)
    for passage, state in zip(passages, batch, strict=True):
        (alone,) = capture(decoder, [passage], [1]).states_of(1)
        assert relative(state.numpy(), alone.numpy()) < 1e-5


def test_longrope_passages_beyond_the_switch_do_not_change_shorter_ones(
    decoder_of: Callable[[str], Decoder], texts: list[str]
) -> None:
    decoder = decoder_of("phi3_longrope")
    assert decoder.rotary_switch == 24
    passages = encoded(decoder, texts)
    assert len({passage.stretched for passage in passages}) == 2
    mixed = capture(decoder, passages, [1]).states_of(1)
    alone = [capture(decoder, [passage], [1]).states_of(1)[0] for passage in passages]
    gaps = [relative(a.numpy(), b.numpy()) for a, b in zip(mixed, alone, strict=True)]
    assert max(gaps) > 1e-3, "the switch would show if such passages shared a batch"
