"""Vectors of sensitive concepts, and files of vectors."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from safetensors.torch import save

from poolbench.config import ModelRef, resolve_model
from poolbench.errors import InputError
from poolbench.http.api import build_api
from poolbench.settings import SteererSettings
from poolbench_steerer.engine import SteeringEngine
from poolbench_steerer.errors import UnknownVectorError, VectorError
from poolbench_steerer.host import EngineHost
from poolbench_steerer.http.vectors import parse_safetensors
from poolbench_steerer.plugin.bank import VectorBank, vector_id
from poolbench_steerer.service import SteererService

EYE = np.eye(8, dtype=np.float32)
SECRET_ID = vector_id(EYE[0])


class Device:
    """What an engine asks of vLLM before it generates: how much fits, and copies to the device."""

    errored = False
    generate = None

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
        info = {"num_layers": 6, "num_edits": 4, "state_bytes": 32, "runner": "v1", "eager": True, "num_rows": 4}
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
