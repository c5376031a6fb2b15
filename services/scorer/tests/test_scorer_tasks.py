"""The service: tasks in a folder store, HTTP verbs with real FastAPI, the fence around sensitive concepts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from poolbench.contracts.tables import PROMPTS, TEXTS, table_from_rows
from poolbench.contracts.tasks import Task
from poolbench.errors import InputError
from poolbench.runtime.http import build_api
from poolbench.runtime.taskio import TaskIO
from poolbench.storage.artifacts import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_scorer.handlers import _KEPT, KEPT_SCORERS, read_scorer
from poolbench_scorer.service import ScorerService, create
from poolbench_scorer.train import Trained

from .conftest import save_tiny_bert

HEADERS = {"Authorization": "Bearer secret"}


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return Artifacts(FolderStore(tmp_path / "store"))


@pytest.fixture
def service(artifacts: Artifacts) -> ScorerService:
    return ScorerService(lambda: artifacts)


@pytest.fixture
def client(service: ScorerService) -> Iterator[TestClient]:
    with TestClient(build_api(service, "secret"), headers=HEADERS) as running:
        yield running


def run(service: ScorerService, artifacts: Artifacts, kind: str, **parts: dict) -> TaskIO:
    """Executes one task as the worker does."""
    task = Task(kind=kind, **parts)
    io = TaskIO(task, artifacts)
    service.handlers[kind](task, io)
    return io


def steered(passages: pa.Table, name: str) -> pa.Table:
    """TEXTS that continue passages."""
    rows = [
        {"text_id": f"{name}-{index}", "prompt_id": row["passage_id"], "text": row["text"][-200:]}
        for index, row in enumerate(passages.to_pylist())
    ]
    return table_from_rows(rows, TEXTS)


def test_train_gate_and_score_as_tasks(
    service: ScorerService,
    artifacts: Artifacts,
    tiny_bert: Path,
    scorer_passages: pa.Table,
    test_passages: pa.Table,
) -> None:
    artifacts.write_table("p.scorer", scorer_passages)
    artifacts.write_table("p.test", test_passages)
    artifacts.write_table("t.one", steered(test_passages, "one"))
    artifacts.write_table("t.two", steered(test_passages.slice(0, 5), "two"))
    params = {"concept": "contrast", "base": str(tiny_bert), "mode": "head", "epochs": 1, "num_windows": 1}
    outputs = {"scorer": "scorer.train.a", "measures": "scorer.train.b"}
    io = run(
        service,
        artifacts,
        "scorer.train",
        inputs={"passages/scorer": "p.scorer"},
        outputs=outputs,
        params=params,
    )
    assert not io.missing
    (pointer,) = artifacts.store.list("scorers/contrast/")
    assert json.loads(artifacts.store.get(pointer.path))["scorer"] == "scorer.train.a"

    inputs = {"scorer": "scorer.train.a", "passages/test": "p.test", "continuations": "t.one"}
    run(service, artifacts, "scorer.gate", inputs=inputs, outputs={"measures": "g"}, params={"num_tokens": 40})
    rows = artifacts.read_table("g").to_pylist()
    assert json.loads(rows[-1]["params"]) == {"part": "verdict"}
    assert rows[-1]["metric"] == "scorer.gate" and rows[-1]["value"] in (0.0, 1.0)

    inputs = {"scorer/contrast": "scorer.train.a", "texts/one": "t.one", "texts/two": "t.two"}
    outputs = {"scores/one": "s.one", "scores/two": "s.two"}
    run(service, artifacts, "scorer.score", inputs=inputs, outputs=outputs)
    one, two = (artifacts.read_table(key).to_pylist() for key in ("s.one", "s.two"))
    assert [row["text_id"] for row in two] == [f"two-{index}" for index in range(5)]
    assert [row["score"] for row in two] == pytest.approx([row["score"] for row in one[:5]], abs=1e-6)


def test_a_redone_task_trains_nothing_and_restores_the_pointer(
    service: ScorerService, artifacts: Artifacts, minilm_training: Trained
) -> None:
    artifacts.write("k.scorer", minilm_training.files)
    artifacts.write_table("k.measures", minilm_training.measures)
    outputs = {"scorer": "k.scorer", "measures": "k.measures"}
    inputs = {"passages/scorer": "never.written"}
    run(service, artifacts, "scorer.train", inputs=inputs, outputs=outputs, params={"concept": "contrast"})
    assert [info.path for info in artifacts.store.list("scorers/")] == ["scorers/contrast/minilm.json"]


def test_tasks_load_a_scorer_once_and_keep_the_last_few(
    service: ScorerService, artifacts: Artifacts, minilm_training: Trained, test_passages: pa.Table
) -> None:
    """Kept by content: the same key in another store, or other weights, are another scorer."""
    artifacts.write_table("t.kept", steered(test_passages.slice(0, 2), "kept"))
    scores = []
    for index in range(KEPT_SCORERS + 2):
        config = json.loads(minilm_training.files["config.json"]) | {"temperature": 1.0 + index}
        artifacts.write(f"scorer.k{index}", minilm_training.files | {"config.json": json.dumps(config).encode()})
        inputs = {"scorer/contrast": f"scorer.k{index}", "texts/x": "t.kept"}
        io = run(service, artifacts, "scorer.score", inputs=inputs, outputs={"scores/x": f"s.{index}"})
        assert read_scorer(io, "scorer/contrast") is read_scorer(io, "scorer/contrast")
        scores.append(artifacts.read_table(f"s.{index}")["score"].to_pylist())
    assert len({tuple(row) for row in scores}) == KEPT_SCORERS + 2
    assert len(_KEPT) == KEPT_SCORERS


def test_scoring_wants_scorers_and_texts(service: ScorerService, artifacts: Artifacts) -> None:
    with pytest.raises(InputError, match="scorer/<concept>"):
        run(service, artifacts, "scorer.score", inputs={}, outputs={"scores/x": "s"})
    artifacts.write_table("t", table_from_rows([], PROMPTS))
    with pytest.raises(InputError, match="texts/x lacks the columns"):
        inputs = {"scorer/contrast": "none", "texts/x": "t"}
        run(service, artifacts, "scorer.score", inputs=inputs, outputs={"scores/x": "s"})


def test_score_over_http_by_concept_and_by_key(
    client: TestClient, service: ScorerService, artifacts: Artifacts, minilm_training: Trained
) -> None:
    artifacts.write("scorer.train.k", minilm_training.files)
    artifacts.store.put("scorers/contrast/minilm.json", b'{"scorer": "scorer.train.k"}')
    texts = ["The tide was high. However, nobody sailed.", "The tide was high and everybody sailed."]
    by_concept = client.post("/score", json={"texts": texts, "scorer": "contrast"}).json()
    by_key = client.post("/score", json={"texts": texts, "scorer": "scorer.train.k"}).json()
    assert by_concept == by_key
    assert by_concept["scorer"] == "scorer.train.k"
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
    assert scores(scorer="contrast") == together[1]  # the latest
    assert scores(scorer="hedging") == together[2]
    ambiguous = client.post("/score", json={"texts": ["a"], "scorer": str(source)}).json()["error"]
    assert ambiguous["code"] == "unknown_name" and f"hedging@{source}" in ambiguous["message"]
    listed = {one["id"]: one for one in client.get("/scorers").json()["scorers"]}
    assert set(listed) == set(names)
    assert listed["contrast@minilm"]["auroc"] > 0.8 and listed["contrast@minilm"]["kind"] == "head"
    assert listed[names[1]]["scorer"] == made[0]["scorer"] and listed[names[1]]["kind"] == "import"


def test_other_weights_under_the_same_name_are_another_scorer(client: TestClient, tmp_path: Path) -> None:
    body = {"concept": "contrast", "source": str(tmp_path), "subfolder": "", "positive_label": "1"}
    keys = []
    for seed in (0, 0, 1):
        save_tiny_bert(tmp_path, seed=seed)
        keys.append(client.post("/import", json=body).json()["scorer"])
    assert keys[0] == keys[1] != keys[2]


def test_an_import_as_a_task_works_without_passages(
    service: ScorerService, artifacts: Artifacts, scorer_passages: pa.Table, tmp_path: Path
) -> None:
    """A corpus in the published layout has no scorer documents; the gate still judges the scorer."""
    save_tiny_bert(tmp_path / "contrast")
    artifacts.write_table("p.none", scorer_passages.slice(0, 0))
    params = {"concept": "contrast", "base": str(tmp_path), "mode": "import", "subfolder": "contrast"}
    outputs = {"scorer": "scorer.train.i", "measures": "scorer.train.m"}
    inputs = {"passages/scorer": "p.none"}
    given = {**params, "positive_label": "1"}
    run(service, artifacts, "scorer.train", inputs=inputs, outputs=outputs, params=given)
    (auroc,) = (row for row in artifacts.read_table("scorer.train.m").to_pylist() if row["metric"] == "scorer.auroc")
    assert (auroc["value"], auroc["status"]) == (None, "no_scorer")


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


@pytest.mark.parametrize(
    ("verb", "body", "status", "code"),
    [
        ("score", {"texts": ["a"], "scorer": "contrst"}, 404, "unknown_concept"),
        ("score", {"texts": ["a"], "scorer": "contrast"}, 404, "not_found"),
        ("score", {"texts": ["a"], "scorer": "scorer.train.none"}, 404, "not_found"),
        ("score", {"texts": [], "scorer": "contrast"}, 422, "input"),
        ("score", {"texts": [3], "scorer": "contrast"}, 422, "input"),
        ("score", {"texts": ["a", " \n"], "scorer": "contrast"}, 422, "input"),
        ("score", {"texts": ["a"]}, 422, "input"),
        ("score", {"texts": ["a"], "scorer": "contrast", "scorers": ["hedging"]}, 422, "input"),
        ("score", {"texts": ["a"], "scorer": "contrast@nowhere"}, 404, "not_found"),
        ("score", {"texts": ["a"], "scorer": "someone/scorers"}, 404, "not_found"),
        ("import", {"concept": "contrst", "source": "minilm"}, 404, "unknown_concept"),
        ("import", {"concept": "toxicity", "source": "minilm"}, 403, "restricted"),
        ("import", {"concept": "contrast", "source": "/nowhere"}, 404, "unknown_model"),
        ("import", {"concept": "contrast", "source": "minilm"}, 400, "model"),
        ("train", {"params": {"concept": "contrast"}}, 422, "input"),
        ("train", {"params": {"concept": "contrast", "epochs": 0}, "passages_key": "x"}, 400, "config"),
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


def test_the_service_is_what_the_runtime_expects() -> None:
    service = create()
    assert service.name == "scorer"
    assert set(service.handlers) == {"scorer.train", "scorer.gate", "scorer.score"}
