"""The service, and scorers of sensitive concepts."""

import pytest
from fastapi.testclient import TestClient

from poolbench.storage import Artifacts
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
