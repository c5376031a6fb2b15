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


def test_score_over_http_by_concept_and_by_key(
    client: TestClient, service: ScorerService, artifacts: Artifacts, minilm_training: Trained
) -> None:
    artifacts.write("scorer.train.k", minilm_training.files)
    artifacts.store.put("scorers/contrast/minilm.json", b'{"scorer": "scorer.train.k"}')
    texts = ["The tide was high. However, no boat sailed.", "The tide was high and everybody sailed."]
    by_concept = client.post("/score", json={"texts": texts, "scorer": "contrast"}).json()
    by_key = client.post("/score", json={"texts": texts, "scorer": "scorer.train.k"}).json()
    assert by_concept == by_key
    assert by_concept["scorer"] == "scorer.train.k" and by_concept["gate"] is None, "no run judged it"
    assert by_concept["scores"][0] > by_concept["scores"][1]
    assert service.health()["texts_scored"] == 4


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
    assert service.health()["scorers_trained"] == 1
    scored = client.post("/score", json={"texts": ["However."], "scorer": "contrast"}).json()
    assert scored["scorer"] == first.json()["scorer"]


def test_published_scorers_are_imported_listed_and_used(
    client: TestClient, artifacts: Artifacts, minilm_training: Trained, tmp_path: Path
) -> None:
    source = tmp_path / "published"
    for seed, concept in enumerate(("contrast", "hedging")):
        save_tiny_bert(source / concept, seed=seed)
    artifacts.write("scorer.train.k", minilm_training.files)
    artifacts.store.put("scorers/contrast/minilm.json", b'{"scorer": "scorer.train.k"}')
    body = {"concept": "contrast", "source": str(source)}
    asked = client.post("/import", json=body).json()["error"]
    assert asked["code"] == "label_needed" and "LABEL_0 (0), LABEL_1 (1)" in asked["message"]
    made = [
        client.post("/import", json={**body, "concept": concept, "positive_label": "LABEL_1"}).json()
        for concept in ("contrast", "hedging")
    ]
    assert [one["id"] for one in made] == [f"contrast@{source}", f"hedging@{source}"]
    assert made[0]["report"]["auroc"] is None and made[0]["report"]["positive_label"] == "LABEL_1"

    def scores(**by: object) -> dict:
        answer = client.post("/score", json={"texts": ["However, it rained."], **by})
        assert answer.status_code == 200, answer.text
        return answer.json()

    names = ["contrast@minilm", f"contrast@{source}", f"hedging@{source}"]
    together = scores(scorers=names)["scorers"]
    assert together == [scores(scorer=name) for name in names]
    assert len({one["scores"][0] for one in together}) == 3
    assert scores(scorer="contrast") == together[1]  # a request made it
    assert scores(scorer="hedging") == together[2]
    ambiguous = client.post("/score", json={"texts": ["a"], "scorer": str(source)}).json()["error"]
    assert ambiguous["code"] == "unknown_name" and f"hedging@{source}" in ambiguous["message"]
    listed = {one["id"]: one for one in client.get("/scorers").json()["scorers"]}
    assert {name.rpartition(":")[0] for name in listed} == set(names)
    own, imported = (next(one for name, one in listed.items() if name.startswith(each)) for each in names[:2])
    assert own["auroc"] > 0.8 and (own["kind"], own["default"]) == ("head", False)
    assert (imported["scorer"], imported["kind"], imported["default"]) == (made[0]["scorer"], "import", True)


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
