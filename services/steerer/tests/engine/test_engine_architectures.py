"""Blocks that return one tensor, and compiled graphs: all operations equal Transformers there too."""

import gc
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from poolbench.config import resolve_model
from poolbench_steerer.engine import GenerationRequest
from poolbench_steerer.host import EngineHost

pytestmark = [pytest.mark.slow, pytest.mark.release]
WIDTH, NUM_LAYERS, NUM_NEW = 256, 4, 8
VOCABULARY = 400
NORM = 20.0  # about the residual norm of these models


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=NUM_LAYERS, n_head=4, n_positions=256,
            bos_token_id=0, eos_token_id=1, initializer_range=0.08,
        )
    )  # fmt: skip


def gpt_neox() -> Any:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=NUM_LAYERS, num_attention_heads=4,
            intermediate_size=512, max_position_embeddings=256, bos_token_id=0, eos_token_id=1,
            initializer_range=0.08,
        )
    )  # fmt: skip


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=NUM_LAYERS, num_attention_heads=4,
            num_key_value_heads=2, intermediate_size=512, max_position_embeddings=256, bos_token_id=0,
            eos_token_id=1, initializer_range=0.08, tie_word_embeddings=False,
        )
    )  # fmt: skip


# GPT-2 runs in vLLM's own code, GPT-NeoX in Transformers' under vLLM, with a batch axis of one.
# Each engine takes 20 s and more to start: one a model, and compilation with the fused pair.
CASES = {
    "gpt2": (gpt2, lambda model: model.transformer.h, True),
    "gpt_neox": (gpt_neox, lambda model: model.gpt_neox.layers, True),
    "llama_compiled": (llama, lambda model: model.model.layers, False),
}


@pytest.fixture(scope="module")
def others(engine_processes: Callable[[], set[int]]) -> set[int]:
    """Engines of other files."""
    return engine_processes()


@pytest.fixture(scope="module")
def host_of(steerer_config: Any, others: set[int]) -> Iterator[Callable[[bool], EngineHost]]:
    """A host, which is kept as long as it is asked for in the same way: eager, or not."""
    made: dict[bool, EngineHost] = {}

    def get(eager: bool) -> EngineHost:
        if eager not in made:
            close()
            settings = {"enforce_eager": eager, "kv_cache_gib": 0.05, "max_num_batched_tokens": 64}
            made[eager] = EngineHost(steerer_config.model_copy(update=settings))
        return made[eager]

    def close() -> None:
        for eager in list(made):
            made.pop(eager).close()
        gc.collect()

    yield get
    close()


@pytest.fixture(params=CASES)
def case(
    request: Any, tmp_path: Path, tiny_model: Path, host_of: Callable[[bool], EngineHost]
) -> tuple[Any, Any, EngineHost, Any]:
    """A tiny random model in Transformers, its blocks, an engine host, and its reference."""
    make, blocks, eager = CASES[request.param]
    torch.manual_seed(1)
    model = make().eval()
    model.save_pretrained(tmp_path)
    for file in tiny_model.glob("*token*"):
        shutil.copy(file, tmp_path)
    return model, blocks(model), host_of(eager), resolve_model(str(tmp_path))


def test_all_operations_equal_transformers(
    case, unit_vectors, many_settings, transformers_greedy, engine_processes, others
):
    """The second model is served by the host that had the first: it ends its engine and starts another."""
    model, blocks, host, model_ref = case
    ids = host.run(model_ref, lambda engine: engine.register(list(unit_vectors)))
    rng = np.random.default_rng(2)
    requests = [
        GenerationRequest(
            tuple(rng.integers(2, VOCABULARY, size=10 + 3 * index).tolist()), NUM_NEW, steering, ignore_eos=True
        )
        for index, steering in enumerate(many_settings(ids, NUM_LAYERS, NORM, 24))
    ]
    made = host.run(model_ref, lambda engine: engine.generate(requests))
    vectors = dict(zip(ids, unit_vectors, strict=True))
    oracle = [transformers_greedy(model, blocks, r.prompt_ids, r.steering, vectors, NUM_NEW) for r in requests]
    assert [generation.token_ids for generation in made] == oracle
    assert host.health()["model"] == model_ref.id
    assert len(engine_processes() - others) == 1
    plain = [transformers_greedy(model, blocks, r.prompt_ids, None, vectors, NUM_NEW) for r in requests]
    assert sum(a != b for a, b in zip(oracle, plain, strict=True)) > 12
