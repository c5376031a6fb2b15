"""HTTP verbs behind the runtime's token check."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from poolbench.config import resolve_model
from poolbench.contracts.tables import directions_schema, table_from_rows
from poolbench.contracts.wire import RUN_FILES, run_path
from poolbench.http.api import build_api
from poolbench.library.directions import TABLE, table_of
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_steerer.service import SteererService

pytestmark = pytest.mark.lane(name="engines")


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    return Artifacts(FolderStore(tmp_path_factory.mktemp("store")))


@pytest.fixture(scope="module")
def client(host: Any, tiny_model: Path, artifacts: Artifacts) -> Iterator[Any]:
    api = build_api(SteererService(host, lambda: artifacts), "secret")
    with TestClient(api, headers={"Authorization": "Bearer secret"}) as client:
        yield client


@pytest.fixture
def body(tiny_model: Path) -> dict[str, Any]:
    return {"model": str(tiny_model), "prompts": ["The river", "Nobody"], "max_tokens": 6}


def test_register_list_and_steer_by_id(client, body, tiny_model, unit_vectors):
    model = str(tiny_model)
    registered = client.post("/vectors", json={"vectors": unit_vectors[:2].tolist(), "model": model}).json()
    listed = client.get("/vectors", params={"model": model}).json()
    assert set(registered["vector_ids"]) <= {entry["vector_id"] for entry in listed["vectors"]}
    assert listed["width"] == 256
    steering = {"vector_id": registered["vector_ids"][0], "layer": 2, "alpha": 90.0}
    steered = client.post("/generate", json=body | {"steering": steering}).json()["texts"]
    plain = client.post("/generate", json=body).json()["texts"]
    assert [text["receipt"]["positions_changed"] for text in steered] == [t["num_tokens"] for t in steered]
    assert [text["receipt"] for text in plain] == [None, None]
    assert steered[0]["text"] != plain[0]["text"]
    inline = {"vector": unit_vectors[0].tolist(), "layer": 2, "strength": 1.5, "residual_norm": 60.0}
    assert client.post("/generate", json=body | {"steering": inline}).json()["texts"] == steered


def test_a_concept_means_the_direction_of_the_latest_run(client, body, artifacts, tiny_model, unit_vectors):
    """A run has measured contrast at layer 2: its name steers as its vector does, in both APIs."""
    model, vector, key = str(tiny_model), unit_vectors[0].tolist(), "prober.probe.0001"
    steering = {"concept": "contrast", "strength": 0.5}
    absent = client.post("/generate", json=body | {"steering": steering})
    assert absent.status_code == 404 and "no run has a direction of contrast" in absent.json()["error"]["message"]
    row = {"direction_id": "C1", "vector": vector, "raw_norm": 1.0, "status": None}
    artifacts.write_table(key, table_from_rows([row], directions_schema(len(vector))))
    of = {
        "model": model,
        "model_revision": resolve_model(model).revision,
        "concept": "contrast",
        "strategy": "A1_mean",
        "layer": 2,
        "construction": "C1",
        "key": key,
    }
    sink = pa.BufferOutputStream()
    figures = {"d1": 0.9, "gain": 0.3, "gain_where_chosen": 0.4, "fluent_strength": 0.4}
    pq.write_table(table_of([of | figures]), sink)
    artifacts.store.put(run_path("run-1", f"{RUN_FILES}{TABLE}.parquet"), sink.getvalue().to_pybytes())

    by_hand = client.post("/generate", json=body | {"steering": {"vector": vector, "layer": 2, "strength": 0.5}}).json()
    named = client.post("/generate", json=body | {"steering": steering}).json()
    assert [text["text"] for text in named["texts"]] == [text["text"] for text in by_hand["texts"]]
    direction = {"run": "run-1", "concept": "contrast", "strategy": "A1_mean", "layer": 2, "construction": "C1"}
    for text, same in zip(named["texts"], by_hand["texts"], strict=True):
        (edit,), (other,) = text["receipt"]["edits"], same["receipt"]["edits"]
        assert edit == other | {"direction": direction | {"fluent_strength": 0.4}}
    completion = {"model": model, "prompt": body["prompts"], "max_tokens": 6, "temperature": 0.0}
    chosen = client.post("/v1/completions", json=completion | {"steering": steering | {"strategy": "A1_mean"}}).json()
    assert [choice["text"] for choice in chosen["choices"]] == [text["text"] for text in named["texts"]]
    assert chosen["choices"][0]["steering_receipt"]["edits"][0]["direction"]["run"] == "run-1"
    readings = [{"concept": "contrast"}, {"vector": vector, "layer": 2}]
    read = client.post("/v1/completions", json=completion | {"reading": readings}).json()["choices"][0]["reading"]
    assert read[0]["scores"] == read[1]["scores"] and len(read[0]["scores"]) == 6
    assert read[0]["direction"]["run"] == "run-1" and read[0]["layer"] == 2 and read[1]["direction"] is None


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ({"concept": "contrast", "vector_id": "x", "layer": 1}, "exactly one of vector, vector_id and concept"),
        ({"vector_id": "x"}, "give the layer of the vector"),
        ({"vector_id": "x", "layer": 1, "strategy": "A1_mean"}, "strategy and run belong to a concept"),
    ],
)
def test_an_edit_names_one_thing(client, body, edit, said):
    answer = client.post("/generate", json=body | {"steering": edit | {"strength": 0.1}})
    assert answer.status_code == 422 and said in answer.json()["error"]["message"]


def test_perplexity(client, tiny_model):
    texts = {
        "texts": ["runs past the mill", "saw the fox"],
        "prompts": ["The river ", ""],
        "model": str(tiny_model),
    }
    rows = client.post("/perplexity", json=texts).json()["texts"]
    assert all(row["perplexity"] == pytest.approx(np.exp(row["mean_nll"])) for row in rows)
    assert all(row["num_tokens"] > 1 for row in rows)


@pytest.mark.parametrize(
    ("steering", "status", "code"),
    [
        ({"vector_id": "nope", "layer": 2, "alpha": 1.0}, 404, "unknown_vector"),
        ({"vector": [1.0, 2.0], "layer": 2, "alpha": 1.0}, 400, "vector"),
        ({"vector": [0.0] * 256, "layer": 2, "alpha": 1.0}, 400, "vector"),
        ({"vector": [1.0] * 256, "layer": 6, "alpha": 1.0}, 400, "layer_out_of_range"),
        ({"vector": [1.0] * 256, "layer": 6, "strength": 1.0}, 400, "layer_out_of_range"),
        ({"vector": [1e31] * 256, "layer": 2, "alpha": 1e5}, 400, "vector"),
        ({"vector": [1e10] * 256, "layer": 2, "alpha": 1e3}, 400, "strength"),
        ({"vector": [1.0] * 256, "layer": 2, "strength": 1e7, "residual_norm": 100.0}, 400, "strength"),
        ({"vector": [1.0] * 256, "layer": 2, "alpha": 101, "operation": "erase"}, 400, "strength"),
        ({"vector": [1e-30] * 256, "layer": 2, "alpha": 60.0}, 422, "no_effect"),
        ({"vector": [1e-9] * 256, "layer": 2, "alpha": 1e-9}, 422, "no_effect"),
        ({"vector": [1.0] * 256, "layer": 2}, 422, "input"),
        ({"layer": 2, "alpha": 1.0}, 422, "input"),
    ],
)
def test_bad_steering_is_named(client, body, steering, status, code):
    answer = client.post("/generate", json=body | {"steering": steering})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_an_unknown_model_is_not_found(client, body):
    assert client.post("/generate", json=body | {"model": "demmo"}).status_code == 404


def test_health_lists_what_is_loaded(client, body):
    client.post("/generate", json=body)
    health = client.get("/health").json()
    assert (health["state"], health["steered_requests"], health["runner"]) == ("ready", 0, "v1")
