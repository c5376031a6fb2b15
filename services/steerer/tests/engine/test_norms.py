"""Residual norms and sinks of the calibration texts, against Transformers."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from poolbench.texts import load_calibration
from poolbench_steerer.tokens import tokens_of

pytestmark = pytest.mark.lane(name="engines")


def test_a_strength_is_in_median_residual_norms(http, model_ref, tiny_model, unit_vectors):
    """The unit equals Transformers' hidden states on the calibration texts, without BOS."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    tokens = tokens_of(model_ref)
    norms = []
    for text in load_calibration().column("text").to_pylist():
        ids = tokens.encode(text)[:254]
        with torch.inference_mode():
            # The last entry of hidden_states is after the final norm, so layer 2 is entry 3 of 7.
            norms += model(torch.tensor([ids]), output_hidden_states=True).hidden_states[3][0, 1:].norm(dim=-1).tolist()
    steering = {"vector": unit_vectors[0].tolist(), "layer": 2, "strength": 0.5}
    body = {"model": str(tiny_model), "prompts": ["a"], "max_tokens": 2, "steering": steering}
    answer = http.post("/generate", json=body).json()
    (alpha,) = answer["texts"][0]["receipt"]["alphas"]
    assert alpha == pytest.approx(0.5 * float(np.median(norms)), rel=1e-5)


def test_check_finds_norms_and_sinks(http, tiny_model):
    answer = http.post("/check", json={"model": str(tiny_model)}).json()
    assert answer["self_test"]["add_by_hand_nats"] < 1e-2
    assert (len(answer["layers"]), answer["num_texts"]) == (6, len(load_calibration()))
    assert all(0 < layer["median_norm"] <= layer["largest_norm"] for layer in answer["layers"])
    assert {layer["num_sinks"] for layer in answer["layers"]} == {0} and answer["sinks"] == []
