"""Vectors of sensitive concepts: bulk tasks steer with them, no request lists or uses them."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from poolbench.config import ModelRef, resolve_model
from poolbench.http.api import build_api
from poolbench.settings import SteererSettings
from poolbench_steerer.engine import SteeringEngine
from poolbench_steerer.errors import UnknownVectorError
from poolbench_steerer.host import EngineHost
from poolbench_steerer.plugin.bank import VectorBank, vector_id
from poolbench_steerer.service import SteererService

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
def client(steerer: Steerer) -> TestClient:
    return TestClient(build_api(steerer, "t"), headers={"Authorization": "Bearer t"})


def test_they_are_not_listed(client: TestClient) -> None:
    listed = [entry["vector_id"] for entry in client.get("/vectors").json()["vectors"]]
    assert listed == [vector_id(EYE[1])]


def test_a_request_that_knows_the_id_is_answered_as_if_there_were_none(client: TestClient) -> None:
    def answer(name: str) -> tuple[int, str]:
        steering = {"vector_id": name, "layer": 2, "alpha": 1.0}
        sent = client.post("/generate", json={"prompts": ["The river"], "steering": steering})
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


def test_who_sends_such_a_vector_may_use_it(client: TestClient, steerer: Steerer) -> None:
    """He has it from elsewhere; and a bulk task that registers it later takes nothing away from him."""
    sent = client.post("/vectors", json={"vectors": [EYE[0].tolist()]}).json()
    assert sent["vector_ids"] == [SECRET_ID]
    asyncio.run(steerer.engine.register([EYE[0]], confidential=True))
    assert SECRET_ID in {entry["vector_id"] for entry in client.get("/vectors").json()["vectors"]}
