"""Scoring, training and importing over HTTP, and requests before tasks."""

import threading
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from poolbench.cancellation import between_steps
from poolbench.storage.artifacts import Artifacts
from poolbench_scorer.service import ScorerService
from poolbench_scorer.training.train import Trained

from .conftest import run, save_tiny_bert

pytestmark = pytest.mark.lane(name="series")


def test_train_over_http_answers_with_its_report_and_then_from_the_store(
    client: TestClient, service: ScorerService, tiny_bert: Path, scorer_passages: pa.Table
) -> None:
    passages = [
        {name: row[name] for name in ("text", "label", "doc_id", "pair_id")} for row in scorer_passages.to_pylist()
    ]
    params = {"concept": "contrast", "base": str(tiny_bert), "mode": "head", "epochs": 1, "num_windows": 1}
    first = client.post("/train", json={"params": params, "passages": passages})
    assert first.status_code == 200, first.text
    assert 0 <= first.json()["report"]["auroc"] <= 1
    again = client.post("/train", json={"params": params, "passages": passages})
    assert again.json() == first.json()
    scored = client.post("/score", json={"texts": ["However."], "scorer": "contrast"}).json()
    assert scored["scorer"] == first.json()["scorer"]
    health = service.health()
    assert (health["scorers_trained"], health["texts_scored"]) == (1, 1)


def test_other_weights_under_the_same_name_are_another_scorer(client: TestClient, tmp_path: Path) -> None:
    body = {"concept": "contrast", "source": str(tmp_path), "subfolder": "", "positive_label": "1"}
    keys = []
    for seed in (0, 0, 1):
        save_tiny_bert(tmp_path, seed=seed)
        keys.append(client.post("/import", json=body).json()["scorer"])
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    ("verb", "body", "status", "code"),
    [
        ("score", {"texts": ["a"], "scorer": "contrast"}, 404, "not_found"),
        ("score", {"texts": ["a"], "scorer": "scorer.train.none"}, 404, "not_found"),
        ("score", {"texts": [], "scorer": "contrast"}, 422, "input"),
        ("score", {"texts": [3], "scorer": "contrast"}, 422, "input"),
        ("score", {"texts": ["a", " \n"], "scorer": "contrast"}, 422, "input"),
        ("score", {"texts": ["a"]}, 422, "input"),
        ("score", {"texts": ["a"], "scorer": "contrast", "scorers": ["hedging"]}, 422, "input"),
        ("score", {"texts": ["a"], "scorer": "contrast@nowhere"}, 404, "not_found"),
        ("score", {"texts": ["a"], "scorer": "someone/scorers"}, 404, "not_found"),
        ("import", {"concept": "toxicity", "source": "minilm"}, 403, "restricted"),
        ("import", {"concept": "contrast", "source": "/nowhere"}, 400, "model"),
        ("import", {"concept": "contrast", "source": "minilm"}, 400, "model"),
        ("train", {"params": {"concept": "contrast"}}, 422, "input"),
        ("train", {"params": {"concept": "contrast", "epochs": 0}, "passages_key": "x"}, 422, "input"),
        (
            "train",
            {"params": {"concept": "contrast"}, "passages": [{"text": "a", "label": 1}]},
            400,
            "one_class",
        ),
    ],
)
def test_bad_requests_say_what_was_wrong(client: TestClient, verb: str, body: dict, status: int, code: str) -> None:
    answer = client.post(f"/{verb}", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


def _train(service: ScorerService, artifacts: Artifacts, base: Path, name: str) -> dict[str, str]:
    """Train as a task; return the hashes of the scorer's files."""
    params = {"concept": "contrast", "base": str(base), "mode": "head", "epochs": 2, "num_windows": 1}
    run(
        service,
        artifacts,
        "scorer.train",
        inputs={"passages/scorer": "p.scorer"},
        outputs={"scorer": f"scorer.train.{name}", "measures": f"scorer.train.{name}m"},
        params=params,
    )
    return {file: entry.sha256 for file, entry in artifacts.manifest(f"scorer.train.{name}").files.items()}


def test_a_request_is_answered_between_two_steps_of_a_training(
    client: TestClient,
    service: ScorerService,
    artifacts: Artifacts,
    tiny_bert: Path,
    scorer_passages: pa.Table,
    minilm_training: Trained,
) -> None:
    artifacts.write_table("p.scorer", scorer_passages)
    artifacts.write("scorer.train.k", minilm_training.files)
    undisturbed = _train(service, artifacts, tiny_bert, "a")
    answers: list[httpx.Response] = []
    steps = 0

    def ask() -> None:
        answers.append(client.post("/score", json={"texts": ["However."], "scorer": "scorer.train.k"}))

    asking = threading.Thread(target=ask, daemon=True)

    def between() -> None:
        """Start a request at a late step, and let the training go on when the request waits for its turn."""
        nonlocal steps
        steps += 1
        if steps == 20:
            asking.start()
            pause = threading.Event()
            while asking.is_alive() and not service._turns._num_requests:
                pause.wait(0.005)
        if steps == 21:
            asking.join()

    with between_steps(between):
        disturbed = _train(service, artifacts, tiny_bert, "b")
    assert steps > 21
    assert [answer.status_code for answer in answers] == [200]
    assert disturbed == undisturbed
