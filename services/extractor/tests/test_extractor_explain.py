"""``POST /explain``: contributions of tokens sum to the projection of the vector that ``POST /embed`` answers."""

from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

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
