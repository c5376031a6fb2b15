"""Handlers over a real object store, and the HTTP verbs over a real application."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from poolbench.cancellation import between_steps
from poolbench.contracts.tables import ANNOTATIONS, PASSAGES, require_columns, table_from_rows
from poolbench.contracts.tasks import Task
from poolbench.errors import InputError
from poolbench.http.api import build_api
from poolbench.pooling.states import KeptPassage, states_table
from poolbench.storage.artifacts import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker.taskio import TaskIO
from poolbench_pooler.annotate import Pipeline
from poolbench_pooler.config import AnnotateRequest
from poolbench_pooler.service import create

TEXTS = ["We stayed in Paris because it rained.", "", "Yes", "The report was late 🙂."]
TOKEN = "a-token-for-tests"


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return Artifacts(FolderStore(tmp_path))


def passages(split: str, texts: list[str]) -> pa.Table:
    rows = [{"passage_id": f"{split}-{i}", "split": split, "label": i % 2, "text": t} for i, t in enumerate(texts)]
    return table_from_rows(rows, PASSAGES)


def _key(side: str, role: str) -> str:
    return f"{side}.{role.replace('/', '.')}"


def run(artifacts: Artifacts, kind: str, tables: dict[str, pa.Table], outputs: list[str], params: dict) -> TaskIO:
    for role, table in tables.items():
        artifacts.write_table(_key("in", role), table)
    inputs = {role: _key("in", role) for role in tables}
    task = Task(kind=kind, inputs=inputs, outputs={role: _key("out", role) for role in outputs}, params=params)
    io = TaskIO(task, artifacts)
    create().handlers[kind](task, io)
    return io


def test_annotate_handler(artifacts: Artifacts, pipeline: Pipeline) -> None:
    tables = {
        "passages": passages("test", TEXTS),
        "idf_passages": passages("train", ["It rained .", "a report"]),
    }
    io = run(artifacts, "pooler.annotate", tables, ["annotations"], {"pipeline": "annotator"})
    table = artifacts.read_table("out.annotations")
    require_columns(table, ANNOTATIONS, "annotations")
    assert table["passage_id"].to_pylist() == [f"test-{i}" for i in range(4)]
    assert [len(words) for words in table["word_start"].to_pylist()][1:3] == [0, 1]
    assert table.schema.metadata[b"dep_scheme"] == b"ud"
    assert table.schema.metadata[b"idf_documents"] == b"2"
    assert not io.missing


def test_a_request_is_answered_in_the_middle_of_a_task(artifacts: Artifacts, pipeline: Pipeline) -> None:
    service = create()
    artifacts.write_table("in.passages", passages("train", [f"It rained on day {day}." for day in range(40)]))
    task = Task(kind="pooler.annotate", inputs={"passages": "in.passages"}, outputs={"annotations": "out.a"})
    answers: list[dict[str, Any]] = []

    def ask() -> None:
        answers.append(service.annotate_texts(AnnotateRequest(texts=["Ships came."])))

    asking = threading.Thread(target=ask, daemon=True)

    def between() -> None:
        """Start a request at the first step, and go on when it waits for its turn."""
        if asking.ident is None:
            asking.start()
            pause = threading.Event()
            while asking.is_alive() and not service._turns._num_requests:
                pause.wait(0.005)
        else:
            asking.join()

    with between_steps(between):
        service.handlers["pooler.annotate"](task, TaskIO(task, artifacts))
    assert [answer["annotations"][0]["upos"] for answer in answers] == [["PROPN", "VERB", "PUNCT"]]
    assert artifacts.read_table("out.a").num_rows == 40


def test_test_passages_alone_have_no_idf(artifacts: Artifacts, pipeline: Pipeline) -> None:
    with pytest.raises(InputError, match="idf_passages"):
        run(artifacts, "pooler.annotate", {"passages": passages("test", TEXTS)}, ["annotations"], {})


def test_train_passages_are_their_own_idf(artifacts: Artifacts, pipeline: Pipeline) -> None:
    run(artifacts, "pooler.annotate", {"passages": passages("train", TEXTS)}, ["annotations"], {})
    assert artifacts.read_table("out.annotations").num_rows == 4


def state_table(num_tokens: int, width: int) -> tuple[pa.Table, np.ndarray]:
    hidden = np.random.default_rng(0).normal(size=(num_tokens, width)).astype(np.float32)
    special = np.arange(num_tokens) == 0
    return states_table([KeptPassage(0, "p", hidden, special)], width), hidden


def test_pool_handler_does_what_is_missing(artifacts: Artifacts) -> None:
    states, hidden = state_table(6, 4)
    artifacts.write_table("out.A1_mean.2", pa.table({"kept": [1]}))
    strategies = [{"id": "A1_mean"}, {"id": "P1_last_token"}, {"id": "W1_first_k", "params": {"k": 2}}]
    roles = ["A1_mean/2", "P1_last_token/2", "W1_first_k/2"]
    io = run(artifacts, "pooler.pool", {"states/2": states}, roles, {"strategies": strategies})
    assert not io.missing
    assert artifacts.read_table("out.A1_mean.2").column_names == ["kept"]
    last = artifacts.read_table("out.P1_last_token.2")["vector"].to_pylist()[0]
    first_two = artifacts.read_table("out.W1_first_k.2")["vector"].to_pylist()[0]
    np.testing.assert_allclose(last, hidden[5], rtol=1e-6)
    np.testing.assert_allclose(first_two, hidden[1:3].mean(axis=0), rtol=1e-5)


def test_pool_refuses_a_strategy_without_parameters(artifacts: Artifacts) -> None:
    states, _ = state_table(3, 2)
    with pytest.raises(InputError, match="A1_mean"):
        run(artifacts, "pooler.pool", {"states/0": states}, ["A1_mean/0"], {"strategies": [{"id": "A2_max"}]})


@pytest.fixture(scope="module")
def client() -> TestClient:
    api = build_api(create(), TOKEN)
    return TestClient(api, headers={"Authorization": f"Bearer {TOKEN}"}, raise_server_exceptions=False)


def vectors_of(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["strategy"]: row for row in answer["vectors"]}


def test_http_annotate(client: TestClient, pipeline: Pipeline) -> None:
    answer = client.post("/annotate", json={"texts": TEXTS}).json()
    assert answer["dep_scheme"] == "ud" and answer["idf_source"] == "texts"
    assert len(answer["annotations"]) == len(TEXTS)
    assert "LOC" in answer["annotations"][0]["entity"]


def test_http_pool(client: TestClient, pipeline: Pipeline) -> None:
    body = {"hidden_states": [[1, 2], [3, 6]], "strategies": ["A1_mean", "A2_max", "L1_pos_filtered"]}
    rows = vectors_of(client.post("/pool", json=body).json())
    assert rows["A1_mean"]["vector"] == [2, 4] and rows["A2_max"]["vector"] == [3, 6]
    assert rows["L1_pos_filtered"]["vector"] is None and rows["L1_pos_filtered"]["status"] == "failed"
    body = {
        "hidden_states": [[1, 0], [0, 1], [5, 5]],
        "strategies": ["L3_entity"],
        "text": "Yes Boston .",
        "offsets": [[0, 3], [3, 10], [10, 12]],
    }
    row = vectors_of(client.post("/pool", json=body).json())["L3_entity"]
    assert row["applied"] and row["vector"] == [0, 1]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/annotate", {"texts": []}, 422, "texts"),
        ("/annotate", {"texts": ["a"], "pipeline": "nope"}, 404, "nope"),
        ("/pool", {"hidden_states": [[1], [1, 2]], "strategies": ["A1_mean"]}, 400, "one width"),
        ("/pool", {"hidden_states": [[1]], "strategies": ["A1_men"]}, 404, "A1_mean"),
        ("/pool", {"hidden_states": [[1]], "strategies": ["A1_mean"], "special": [True]}, 400, "special"),
        ("/pool", {"hidden_states": [[1]], "strategies": ["A1_mean"], "offsets": []}, 400, "offsets"),
        ("/pool", {"hidden_states": [[1]], "strategies": ["A1_mean"], "text": "a"}, 400, "offsets"),
        ("/pool", {"hidden_states": [[1]], "strategies": ["A1_mean", "A1_mean"]}, 400, "twice"),
    ],
)
def test_http_errors(client: TestClient, path: str, body: dict, status: int, message: str) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]
