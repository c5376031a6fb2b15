"""HTTP verbs behind the runtime's token check, vectors of sensitive concepts, and files of vectors."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fastapi.testclient import TestClient
from safetensors.torch import save

from poolbench.config import ModelRef, resolve_model
from poolbench.contracts.tables import directions_schema, table_from_rows
from poolbench.contracts.wire import RUN_FILES, run_path
from poolbench.errors import InputError
from poolbench.http.api import build_api
from poolbench.settings import SteererSettings
from poolbench.storage import Artifacts
from poolbench.storage.directions import TABLE, table_of
from poolbench.storage.folder import FolderStore
from poolbench_steerer.engine import SteeringEngine
from poolbench_steerer.errors import UnknownVectorError, VectorError
from poolbench_steerer.host import EngineHost
from poolbench_steerer.http.answers import TokenizerInfo
from poolbench_steerer.http.vectors import parse_safetensors
from poolbench_steerer.plugin.bank import VectorBank, vector_id
from poolbench_steerer.service import SteererService


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
    pq.write_table(table_of([of | {"d1": 0.9, "gain": 0.3, "fluent_strength": 0.4}]), sink)
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


def test_an_unknown_model_and_one_without_tokenizer(client, body, tmp_path):
    assert client.post("/generate", json=body | {"model": "demmo"}).status_code == 404
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    answer = client.post("/generate", json=body | {"model": str(tmp_path)})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "model")


def test_health_lists_what_is_loaded(client, body):
    client.post("/generate", json=body)
    health = client.get("/health").json()
    assert (health["state"], health["steered_requests"], health["runner"]) == ("ready", 0, "v1")


EYE = np.eye(8, dtype=np.float32)
SECRET_ID = vector_id(EYE[0])


class Device:
    """What an engine asks of vLLM before it generates: how much fits, and copies to the device."""

    errored = False

    class model_config:  # noqa: N801
        max_model_len = 64
        dtype = "torch.float32"

    def __init__(self) -> None:
        self.copied: list[str] = []

    async def collective_rpc(self, method: str, *args: Any, **kwargs: Any) -> list[None]:
        self.copied.append(method)
        return [None]


class Steerer(SteererService):
    """The service with its verbs, over a real engine object and bank; only vLLM itself is left out."""

    def __init__(self) -> None:
        super().__init__(EngineHost(SteererSettings()))
        info = {"num_layers": 6, "num_edits": 4, "runner": "v1", "eager": True, "num_rows": 4}
        self.engine = SteeringEngine(
            resolve_model("demo"), Device(), info, VectorBank(8, 8), 0.0, num_seqs=8, on_cpu=True
        )  # type: ignore[arg-type]

        async def run_async(model: ModelRef, job: Any) -> Any:
            return await job(self.engine)

        async def look(model: ModelRef, view: Any) -> Any:
            return view(self.engine.bank)

        vars(self.host).update(run_async=run_async, look=look)


@pytest.fixture
def steerer() -> Steerer:
    made = Steerer()
    asyncio.run(made.engine.register([EYE[0]], confidential=True))  # as a restricted bulk task does
    asyncio.run(made.engine.register([EYE[1]]))
    return made


@pytest.fixture
def restricted_client(steerer: Steerer) -> TestClient:
    return TestClient(build_api(steerer, "t"), headers={"Authorization": "Bearer t"})


def test_they_are_neither_listed_nor_known_to_a_request(restricted_client: TestClient) -> None:
    listed = [entry["vector_id"] for entry in restricted_client.get("/vectors").json()["vectors"]]
    assert listed == [vector_id(EYE[1])]

    def answer(name: str) -> tuple[int, str]:
        steering = {"vector_id": name, "layer": 2, "alpha": 1.0}
        sent = restricted_client.post("/generate", json={"prompts": ["The river"], "steering": steering})
        return sent.status_code, sent.json()["error"]["message"].replace(name, "ID")

    assert answer(SECRET_ID) == answer("0" * 32)
    assert answer(SECRET_ID)[0] == 404


def test_bulk_tasks_steer_with_them(steerer: Steerer) -> None:
    bank = steerer.engine.bank
    with bank.in_use([SECRET_ID], confidential=True) as slots:
        assert set(slots) == {SECRET_ID}
    with pytest.raises(UnknownVectorError), bank.in_use([SECRET_ID]):
        pass
    assert {entry.vector_id for entry in bank.resident} == {SECRET_ID, vector_id(EYE[1])}  # a new engine gets all


def test_who_sends_such_a_vector_may_use_it(restricted_client: TestClient, steerer: Steerer) -> None:
    """He has it from elsewhere; and a bulk task that registers it later takes nothing away from him."""
    sent = restricted_client.post("/vectors", json={"vectors": [EYE[0].tolist()]}).json()
    assert sent["vector_ids"] == [SECRET_ID]
    asyncio.run(steerer.engine.register([EYE[0]], confidential=True))
    assert SECRET_ID in {entry["vector_id"] for entry in restricted_client.get("/vectors").json()["vectors"]}


@pytest.mark.parametrize("shape", [[2_000_000, 0], [0], [2, 65_537], [65_537]])
def test_the_shape_of_a_tensor_is_checked_before_its_rows_are_made(shape):
    size = 4 * int(np.prod(shape))
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}).encode()
    with pytest.raises(VectorError, match="width of 1 to 65536"):
        parse_safetensors(len(header).to_bytes(8, "little") + header + bytes(size))


def test_too_many_rows_are_refused_before_they_are_made():
    with pytest.raises(InputError, match="70000 vectors"):
        parse_safetensors(save({"a": torch.zeros(70_000, 1)}))


def test_a_model_with_several_chat_templates_has_an_answer():
    info = {"tokenizer_class": "T", "vocab_size": 2, "chat_template": {"default": "x", "tool_use": "y"}}
    special = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"))
    assert TokenizerInfo(**info, **special).chat_template == {"default": "x", "tool_use": "y"}
