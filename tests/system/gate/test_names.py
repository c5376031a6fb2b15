"""Names that reach a loader or a file system are names: no path, no folder of the operator's, no artifact elsewhere."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tests.pages import REPOSITORY

from poolbench.model_folders.folders import MODEL_FOLDERS

DEMO = REPOSITORY / "assets" / "demo_lm"
PIPELINES = ["../../x", "/", "/etc", str(DEMO.parent / "annotator"), "./annotator", "demo_lm", "spacy", "os", "x" * 200]
MODELS = ["~nosuchuser", "~nosuchuser/x", "~", ".", "..", "../..", "/", "/etc", str(DEMO), "assets", "assets/demo_lm"]
MODELS += ["a" * 999, "/" + "a" * 900, "a/../..", "asset:demo_lm", "no\\such", "a/b/c", "/proc/self/root/etc"]
SCORERS = [
    "../../x",
    "scorer.../../../x",
    "scorer./etc",
    "restricted.../x",
    "x" * 1_000,
    "contrast@../..",
    "/etc/passwd",
]


@pytest.fixture(autouse=True)
def unconfigured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator who has listed no folder, and no network."""
    monkeypatch.delenv(MODEL_FOLDERS, raising=False)
    monkeypatch.setenv("POOLBENCH_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_are_names(clients: dict[str, TestClient], name: str) -> None:
    hidden = {"hidden_states": [[1.0]], "strategies": ["A1_mean"], "text": "a", "offsets": [[0, 1]]}
    for path, body in (("/annotate", {"texts": ["a"]}), ("/pool", hidden)):
        answer = clients["pooler"].post(path, json={**body, "pipeline": name})
        assert answer.status_code == 404, answer.text
        assert "annotator" in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", MODELS)
def test_requests_name_no_folder_of_the_operator(clients: dict[str, TestClient], name: str) -> None:
    answers = [
        clients["extractor"].get("/model", params={"model": name}),
        clients["extractor"].post("/embed", json={"texts": ["a"], "model": name}),
        clients["scorer"].post("/import", json={"concept": "contrast", "source": name}),
        clients["scorer"].post("/import", json={"concept": "contrast", "source": "minilm", "tokenizer": name}),
    ]
    for answer in answers:
        assert answer.status_code in (400, 404), answer.text


@pytest.mark.parametrize("name", SCORERS)
def test_scorers_are_names_or_keys(clients: dict[str, TestClient], name: str) -> None:
    answer = clients["scorer"].post("/score", json={"texts": ["a"], "scorer": name})
    assert answer.status_code in (403, 404), answer.text
