"""Scorers of sensitive concepts are trained by tasks alone, and served where the operator allows it."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from poolbench.storage.artifacts import Artifacts
from poolbench_scorer.service import ScorerService
from poolbench_scorer.training.train import Trained

from .conftest import run


def test_sensitive_scorers_are_not_served(
    service: ScorerService,
    client: TestClient,
    artifacts: Artifacts,
    minilm_training: Trained,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    artifacts.write("restricted.scorer", minilm_training.files)
    artifacts.write_table("restricted.measures", minilm_training.measures)
    outputs = {"scorer": "restricted.scorer", "measures": "restricted.measures"}
    run(service, artifacts, "scorer.train", inputs={}, outputs=outputs, params={"concept": "toxicity"})
    for scorer in ("toxicity", "restricted.scorer", "restricted.scorer.train.abc"):
        answer = client.post("/score", json={"texts": ["anything"], "scorer": scorer})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "restricted")
    monkeypatch.setenv("POOLBENCH_SENSITIVE", "true")
    assert client.post("/score", json={"texts": ["anything"], "scorer": "restricted.scorer"}).status_code == 200


@pytest.mark.parametrize("concept", ["toxicity", "contrast"])
def test_sensitive_concepts_are_not_trained_over_http(client: TestClient, concept: str) -> None:
    body = {"params": {"concept": concept}, "passages_key": "restricted.corpus.passages.a"}
    assert client.post("/train", json=body).status_code == 403


def test_sensitive_concepts_are_not_imported_over_http(client: TestClient) -> None:
    answer = client.post("/import", json={"concept": "toxicity", "source": "minilm"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "restricted")
