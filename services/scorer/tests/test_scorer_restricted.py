"""The fence around sensitive concepts: their scorers are trained by tasks alone, and served to nobody."""

from __future__ import annotations

import json

import pytest
from fastapi.testclient import TestClient

from poolbench.storage.artifacts import Artifacts
from poolbench_scorer.service import ScorerService
from poolbench_scorer.training.train import Trained

from .conftest import run


@pytest.mark.parametrize("scorer", ["toxicity", "restricted.scorer.train.abc"])
def test_sensitive_scorers_are_never_served(client: TestClient, scorer: str) -> None:
    answer = client.post("/score", json={"texts": ["anything"], "scorer": scorer})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "restricted")


def test_a_sensitive_scorer_under_an_open_key_is_not_served_either(
    client: TestClient, artifacts: Artifacts, minilm_training: Trained
) -> None:
    config = json.loads(minilm_training.files["config.json"]) | {"concept": "depression"}
    artifacts.write("scorer.train.x", minilm_training.files | {"config.json": json.dumps(config).encode()})
    answer = client.post("/score", json={"texts": ["anything"], "scorer": "scorer.train.x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "restricted")


def test_sensitive_concepts_are_not_trained_over_http(client: TestClient) -> None:
    body = {"params": {"concept": "toxicity"}, "passages_key": "restricted.corpus.passages.a"}
    assert client.post("/train", json=body).status_code == 403
    body = {"params": {"concept": "contrast"}, "passages_key": "restricted.corpus.passages.a"}
    assert client.post("/train", json=body).status_code == 403


def test_sensitive_scorers_get_no_pointer(
    service: ScorerService, artifacts: Artifacts, minilm_training: Trained
) -> None:
    artifacts.write("restricted.scorer", minilm_training.files)
    artifacts.write_table("restricted.measures", minilm_training.measures)
    outputs = {"scorer": "restricted.scorer", "measures": "restricted.measures"}
    run(service, artifacts, "scorer.train", inputs={}, outputs=outputs, params={"concept": "toxicity"})
    assert list(artifacts.store.list("scorers/")) == []
