"""Compiled graphs: all operations equal Transformers there too, on a host that had another model before."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from services.steerer.tests.conftest import WIDTH, engine_processes
from services.steerer.tests.engine.conftest import many_settings, transformers_greedy
from transformers import LlamaConfig, LlamaForCausalLM

from poolbench.config import resolve_model
from poolbench_steerer.engine import GenerationRequest
from poolbench_steerer.host import EngineHost

pytestmark = [pytest.mark.lane(name="architectures")]
NUM_LAYERS, NUM_NEW, VOCABULARY = 4, 8, 400
NORM = 20.0  # about the residual norm of the model


def llama() -> LlamaForCausalLM:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=NUM_LAYERS, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=512, max_position_embeddings=256, bos_token_id=0,
        eos_token_id=1, initializer_range=0.08, tie_word_embeddings=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def test_all_operations_equal_transformers(
    steerer_config: Any, model_ref: Any, tiny_model: Path, tmp_path: Path, unit_vectors
):
    others, model = engine_processes(), llama()
    model.save_pretrained(tmp_path)
    for file in tiny_model.glob("*token*"):
        shutil.copy(file, tmp_path)
    settings = {"enforce_eager": False, "kv_cache_gib": 0.05, "max_num_batched_tokens": 64}
    host, ref = EngineHost(steerer_config.model_copy(update=settings)), resolve_model(str(tmp_path))
    try:
        host.run(model_ref, lambda engine: engine.register([]))  # another model
        ids = host.run(ref, lambda engine: engine.register(list(unit_vectors)))
        rng = np.random.default_rng(2)
        requests = [
            GenerationRequest(
                tuple(rng.integers(2, VOCABULARY, size=10 + 3 * index).tolist()), NUM_NEW, steering, ignore_eos=True
            )
            for index, steering in enumerate(many_settings(ids, NUM_LAYERS, NORM, 24))
        ]
        made = host.run(ref, lambda engine: engine.generate(requests))
        assert host.health()["model"] == ref.id and len(engine_processes() - others) == 1
    finally:
        host.close()
    vectors, blocks = dict(zip(ids, unit_vectors, strict=True)), model.model.layers
    oracle = [transformers_greedy(model, blocks, r.prompt_ids, r.steering, vectors, NUM_NEW) for r in requests]
    assert [generation.token_ids for generation in made] == oracle
    plain = [transformers_greedy(model, blocks, r.prompt_ids, None, vectors, NUM_NEW) for r in requests]
    assert sum(a != b for a, b in zip(oracle, plain, strict=True)) > 12
