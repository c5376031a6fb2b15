"""Checkpoints with quantised weights: what is steered are hidden states, so weights may have any form."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from services.steerer.tests.engine.conftest import transformers_next
from services.steerer.tests.engine.test_engine_models import median_norms, steered_requests
from tests.quantised import quantised_llama
from tests.zoo import blocks_of

from poolbench.config import resolve_model
from poolbench.errors import ModelError
from poolbench_steerer.host import EngineHost

pytestmark = pytest.mark.lane(name="engines")
#: Engines compute in bfloat16, and W8A8 rounds inputs too: within so many times the rounding of Transformers.
ROUNDINGS = 10
LATER = [pytest.param(form, marks=pytest.mark.lane(name="architectures")) for form in ("w4a16", "awq")]


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path) -> Path:
    for file in tiny_model.glob("*token*"):
        shutil.copy(file, tmp_path)
    return tmp_path


@pytest.mark.parametrize("form", ["w8a8", "gptq", *LATER])
def test_every_operation_equals_that_on_the_numbers_that_the_weights_stand_for(
    form: str, folder: Path, small_host: EngineHost, unit_vectors: np.ndarray
) -> None:
    exact = quantised_llama(form, folder)
    ids = small_host.run(resolve_model(str(folder)), lambda engine: engine.register(list(unit_vectors)))
    requests = [request for _, request in steered_requests(ids, median_norms(exact))]
    made = small_host.run(resolve_model(str(folder)), lambda engine: engine.generate(requests))
    rough = quantised_llama(form, folder).bfloat16()
    vectors = dict(zip(ids, unit_vectors, strict=True))
    gaps, roundings = [], []
    for request, generation in zip(requests, made, strict=True):
        expected, rounded = (
            transformers_next(model, blocks_of(model), request.prompt_ids, request.steering, vectors)
            for model in (exact, rough)
        )
        gaps += [abs(value - expected[token]) for token, value in generation.first_logprobs.items()]
        roundings += [abs(rounded[token] - expected[token]) for token in generation.first_logprobs]
    assert max(gaps) < ROUNDINGS * max(roundings)


def test_quantised_weights_in_float32_and_forms_that_vllm_lacks_are_refused_at_the_start(
    folder: Path, small_host: EngineHost
) -> None:
    quantised_llama("w8a8", folder)
    with pytest.raises(ModelError, match="are quantised, and engines compute with such weights in bfloat16 or float16"):
        small_host.run(resolve_model(str(folder), dtype="float32"), lambda engine: engine.register([]))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "squeezed"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="squeezed"):
        small_host.run(resolve_model(str(folder)), lambda engine: engine.register([]))
