"""Every operation equals Transformers for every architecture, with random weights and with weights as training leaves.

Each engine takes 20 s and more to start, so some architectures have random weights only. The lane `engines` runs one
model, and the lane `architectures` the others.
"""

import copy
import shutil
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from services.steerer.tests.engine.conftest import transformers_next
from tests.zoo import NUM_BLOCKS, VOCABULARY, architectures, blocks_of, random_model, trained_like, watched

from poolbench.config import resolve_model
from poolbench_steerer.engine import GenerationRequest
from poolbench_steerer.plugin.spec import OPERATION_CODES, Edit, Steering

pytestmark = pytest.mark.lane(name="engines")
WIDTH, NUM_NEW, SINK = 256, 4, 5  # SINK: the first token of every prompt
SELF_TEST_NATS, ALLOWED_NATS = 2e-3, 1e-3
#: How many times the rounding of Transformers in float32, measured against float64, is allowed where it is larger.
ROUNDINGS = 8
ARCHITECTURES = architectures(WIDTH)
IN_CI = {("gemma2", True)}  # other files start Llama
TRAINED = (
    "falcon", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "llama", "mistral", "mixtral", "olmo2", "opt", "phi3",
    "qwen2", "qwen3", "stablelm",
)  # fmt: skip
CASES = [
    pytest.param(name, trained, marks=() if (name, trained) in IN_CI else pytest.mark.lane(name="architectures"))
    for name, trained in (*product(ARCHITECTURES, (False,)), *product(TRAINED, (True,)))
]


@pytest.fixture
def saved(tmp_path: Path, tiny_model: Path) -> Callable[[str, bool], Any]:
    """Makes a model of the zoo and writes it into a folder."""

    def save(name: str, trained: bool) -> Any:
        model = random_model(ARCHITECTURES[name], "eager").eval()  # other kinds of attention ignore Gemma 2's caps
        if trained:
            trained_like(model, [SINK])
        model.save_pretrained(tmp_path)
        for file in tiny_model.glob("*token*"):
            shutil.copy(file, tmp_path)
        return model

    return save


@pytest.mark.parametrize(("name", "trained"), CASES)
def test_every_operation_equals_transformers(name, trained, saved, small_host, tmp_path, unit_vectors, models_table):
    model, model_ref = saved(name, trained), resolve_model(str(tmp_path))
    try:
        ids = small_host.run(model_ref, lambda engine: engine.register(list(unit_vectors)))
    except Exception as error:
        models_table(name, trained, {"steerer_refuses": str(error).replace(str(tmp_path), "...")})
        raise
    checks = small_host.health()["self_test"]
    assert max(checks.values()) < SELF_TEST_NATS
    requests = list(steered_requests(ids, median_norms(model)))
    made = small_host.run(model_ref, lambda engine: engine.generate([request for _, request in requests]))
    vectors = dict(zip(ids, unit_vectors, strict=True))
    wide = {key: vector.astype(np.float64) for key, vector in vectors.items()}
    exact = copy.deepcopy(model).double()
    exact.set_experts_implementation("eager")  # others do not compute in float64
    gaps, roundings = dict.fromkeys(OPERATION_CODES, 0.0), dict.fromkeys(OPERATION_CODES, 0.0)
    for (operation, request), generation in zip(requests, made, strict=True):
        expected, rounded = (
            transformers_next(each, blocks_of(each), request.prompt_ids, request.steering, of_type)
            for each, of_type in ((exact, wide), (model, vectors))
        )
        found = generation.first_logprobs
        gaps[operation] = max(gaps[operation], *(abs(value - expected[token]) for token, value in found.items()))
        roundings[operation] = max(roundings[operation], *(abs(rounded[token] - expected[token]) for token in found))
    figures = {"self_test": max(checks.values()), "rounding": max(roundings.values()), **gaps}
    models_table(name, trained, {f"steerer_{what}": gap for what, gap in figures.items()})
    allowed = max(ALLOWED_NATS, ROUNDINGS * max(roundings.values()))
    assert max(gaps.values()) < allowed, figures


def median_norms(model: Any) -> list[float]:
    """Median residual norm after each block."""
    with torch.inference_mode(), watched(model) as streams:
        model(torch.arange(20, 80)[None], use_cache=False)
    return [float(stream[0].norm(dim=-1).median()) for stream in streams]


def steered_requests(ids: list[str], norms: list[float]) -> Iterator[tuple[str, GenerationRequest]]:
    """Every operation after every block, on generated tokens and on all."""
    rng = np.random.default_rng(3)
    ways = product(OPERATION_CODES, range(NUM_BLOCKS), ("generated", "all"))
    for index, (operation, layer, positions) in enumerate(ways):
        alpha = 1.0 if operation == "erase" else (-1) ** index * norms[layer]
        steering = Steering((Edit(ids[index], layer, alpha, operation),), positions)
        prompt = (SINK, *rng.integers(20, VOCABULARY, size=8 + 2 * index).tolist())
        yield operation, GenerationRequest(prompt, NUM_NEW, steering, logprobs=20, ignore_eos=True)
