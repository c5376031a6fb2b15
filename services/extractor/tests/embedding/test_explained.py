"""``POST /explain``: contributions of tokens sum to the projection of the vector that ``POST /embed`` answers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from safetensors.numpy import load
from services.extractor.tests.test_features import ARCHITECTURES, NUM_FEATURES, saved
from transformers import AutoModelForCausalLM, AutoTokenizer

from poolbench.storage import Artifacts, open_store

DIRECTION = np.random.default_rng(0).normal(size=32)


@pytest.mark.parametrize(
    "strategy",
    [
        "A1_mean", "A2_max", "A3_min", "A5_median", "A4_norm_weighted", "S1_attention", "S2_gradient", "W2_last_k:k=3",
        "S1_attention:corrected=false", "W4_hierarchical:remainder=true", "P1_last_token", "P2_first_token",
    ],
)  # fmt: skip
def test_contributions_sum_to_the_projection_of_the_embedding(
    client: TestClient, body: dict[str, Any], strategy: str
) -> None:
    asked = {**body, "strategy": strategy}
    vectors = client.post("/embed", json=asked).json()["vectors"]
    answer = client.post("/explain", json={**asked, "direction": DIRECTION.tolist()})
    assert answer.status_code == 200, answer.text
    texts = answer.json()["texts"]
    assert len(texts) == len(body["texts"]) and answer.json()["strategy"] == strategy
    for text, vector, source in zip(texts, vectors, body["texts"], strict=True):
        projection = float(np.array(vector) @ DIRECTION)
        assert text["projection"] == pytest.approx(projection, rel=1e-5, abs=1e-5)
        assert sum(token["contribution"] for token in text["tokens"]) == pytest.approx(projection, rel=1e-5, abs=1e-5)
        assert sum(token["weight"] for token in text["tokens"]) == pytest.approx(1, abs=1e-5)
        spans = [(token["start"], token["end"]) for token in text["tokens"] if not token["special"]]
        assert all(source[start:end] for start, end in spans) and spans == sorted(spans)


def test_without_a_direction_tokens_have_weights_and_a_text_that_fails_has_none(
    client: TestClient, body: dict[str, Any]
) -> None:
    answer = client.post("/explain", json={**body, "texts": ["one two", ""]}).json()
    whole, empty = answer["texts"]
    assert whole["projection"] is None and {token["contribution"] for token in whole["tokens"]} == {None}
    assert empty["status"] != "ok" and empty["reason"] and empty["tokens"] == []


@pytest.mark.parametrize(
    ("wrong", "status", "message"),
    [
        ({"direction": [1.0, 2.0]}, 400, "direction has 2 numbers; the model's states have 32"),
        ({"strategy": "S3_iti_probe"}, 400, "is supervised"),
        ({"strategy": "A1_men"}, 404, "did you mean A1_mean"),
        ({"layer": 7}, 400, "layer"),
        ({"direction": []}, 422, "direction"),
        ({"texts": ["a " * 150_000]}, 413, "characters in texts"),
    ],
)
def test_what_cannot_be_explained_says_why(
    client: TestClient, body: dict[str, Any], wrong: dict[str, Any], status: int, message: str
) -> None:
    refused = client.post("/explain", json={**body, **wrong})
    assert refused.status_code == status and message in refused.json()["error"]["message"]


@pytest.fixture
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifacts:
    """The store of the cluster that the extractor belongs to."""
    for name, value in (("STORE", tmp_path / "store"), ("BROKER", "filesystem://queue"), ("STATE", tmp_path)):
        monkeypatch.setenv(f"POOLBENCH_{name}", str(value))
    return Artifacts(open_store(str(tmp_path / "store")))


def features_by_hand(files: Mapping[str, bytes], x_TD: np.ndarray) -> np.ndarray:
    """Features in NumPy, float64, from the files of an autoencoder."""
    settings = json.loads(files["cfg.json"])
    of = {name: value.astype(np.float64) for name, value in load(files["sae.safetensors"]).items()}
    projected = (x_TD - of["b_dec"] * settings["apply_b_dec_to_input"]) @ of["W_enc"]
    if settings["architecture"] == "gated":
        return (projected + of["b_gate"] > 0) * np.maximum(projected * np.exp(of["r_mag"]) + of["b_mag"], 0)
    z = projected + of["b_enc"]
    if settings["architecture"] in ("jumprelu", "batchtopk"):
        return np.where(z > of["threshold"], np.maximum(z, 0), 0)
    if settings["architecture"] == "topk":
        z = np.where(z >= np.sort(z, axis=1)[:, -settings["k"], None], z, 0)
    return np.maximum(z, 0)


@pytest.mark.parametrize("apply_b_dec", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_activations_are_those_of_transformers_and_numpy(
    client: TestClient,
    body: dict[str, Any],
    artifacts: Artifacts,
    saved_llama: Path,
    architecture: str,
    apply_b_dec: bool,
) -> None:
    """Features of each token that counts, in the order of the request; special tokens have none."""
    files, features = saved(architecture, apply_b_dec=apply_b_dec), [79, *range(0, 60, 2)]
    artifacts.write("import.sae.one", files)
    answer = client.post("/explain", json={**body, "autoencoder": "import.sae.one", "features": features})
    assert answer.status_code == 200, answer.text
    model = AutoModelForCausalLM.from_pretrained(saved_llama, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(saved_llama)
    num_active = 0
    for text, explained in zip(body["texts"], answer.json()["texts"], strict=True):
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
        expected_TF = features_by_hand(files, states[body["layer"] + 1][0].double().numpy())[:, features]
        tokens = explained["tokens"]
        assert [token["activations"] is None for token in tokens] == [token["special"] for token in tokens]
        for token, expected_F in zip(tokens, expected_TF, strict=True):
            if not token["special"]:
                assert token["activations"] == pytest.approx(expected_F, rel=1e-4, abs=1e-5)
                num_active += int((expected_F > 0).sum())
    assert num_active > 50


def test_sinks_have_no_activations_and_other_tokens_do_not_change(
    client: TestClient, body: dict[str, Any], artifacts: Artifacts
) -> None:
    artifacts.write("import.sae.one", saved("standard"))
    request = {**body, "autoencoder": "import.sae.one", "features": [3], "sink_ratio": 1.02}
    without, with_sinks = (
        client.post("/explain", json={**request, "sinks": sinks}).json()["texts"] for sinks in ("exclude", "include")
    )
    pairs = [
        pair
        for one, other in zip(without, with_sinks, strict=True)
        for pair in zip(one["tokens"], other["tokens"], strict=True)
    ]
    sinks = [pair for pair in pairs if not pair[0]["special"] and pair[0]["weight"] == 0]
    assert sinks and all(one["activations"] is None and other["activations"] for one, other in sinks)
    assert all(one["activations"] == other["activations"] for one, other in pairs if one["weight"])


@pytest.mark.parametrize(
    ("wrong", "status", "message"),
    [
        ({"features": [1, NUM_FEATURES]}, 400, f"feature {NUM_FEATURES}: the autoencoder has the features 0 to 79"),
        ({"autoencoder": "import.sae.wide"}, 400, "the autoencoder reads width 16"),
        ({"autoencoder": "import.sae.none"}, 404, "artifact import.sae.none does not exist"),
        ({"autoencoder": "../runs"}, 422, "autoencoder"),
        ({"autoencoder": None}, 422, "`autoencoder` and `features` belong together"),
        ({"features": []}, 422, "`autoencoder` and `features` belong together"),
        ({"features": [-1]}, 422, "features"),
        ({"features": [0] * 33}, 422, "features"),
    ],
)
def test_an_autoencoder_that_cannot_be_read_is_said(
    client: TestClient, body: dict[str, Any], artifacts: Artifacts, wrong: dict[str, Any], status: int, message: str
) -> None:
    artifacts.write("import.sae.one", saved("standard"))
    artifacts.write("import.sae.wide", saved("standard", width=16))
    refused = client.post("/explain", json={**body, "autoencoder": "import.sae.one", "features": [1], **wrong})
    assert refused.status_code == status and message in refused.json()["error"]["message"]
