"""What clients may do wrong, and what happens when they leave: on the real engine behind a real server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import save
from services.steerer.tests.conftest import HEADERS, settle, standing_still
from tests.waiting import PATIENCE_S, until

from poolbench_steerer.host import EngineHost

pytestmark = pytest.mark.lane(name="engines")

OCTETS = {"Content-Type": "application/octet-stream"}


@pytest.fixture
def body(host: EngineHost, model_ref: Any, tiny_model: Path, unit_vectors: np.ndarray) -> dict[str, Any]:
    """A request whose vector the engine has, so that it gets as far as a row of an engine that stands still."""
    host.run(model_ref, lambda engine: engine.register([unit_vectors[0]]))
    steering = {"vector": unit_vectors[0].tolist(), "layer": 2, "alpha": 60.0}
    return {"model": str(tiny_model), "prompt": "The river", "max_tokens": 200, "ignore_eos": True} | {
        "steering": steering
    }


def test_a_client_that_leaves_a_stream_frees_everything(address, host, body):
    """All rows of the engine are in use when the client has read one line and leaves."""

    async def leave() -> None:
        async with httpx.AsyncClient(base_url=address, headers=HEADERS, timeout=PATIENCE_S, trust_env=False) as client:
            request = client.build_request("POST", "/v1/completions", json=body | {"stream": True, "n": 200})
            with standing_still(host):
                asking = asyncio.create_task(client.send(request, stream=True))
                await until(lambda: host.in_use()["rows"] == host.config.max_steered_requests)
                assert host.in_use()["vectors"] == 1
            answer = await asking
            await anext(answer.aiter_lines())
            await answer.aclose()

    asyncio.run(leave())
    settle(host)


@pytest.mark.parametrize("verb", ["/v1/completions", "/generate"])
def test_a_client_that_leaves_before_the_answer_frees_everything(address, host, body, verb):
    if verb == "/generate":
        body = {key: body[key] for key in ("model", "steering", "max_tokens")} | {"prompts": ["The river"] * 24}
    else:
        body |= {"n": 24}

    async def leave() -> None:
        async with httpx.AsyncClient(base_url=address, headers=HEADERS, trust_env=False) as client:
            with standing_still(host):
                asking = asyncio.create_task(client.post(verb, json=body, timeout=PATIENCE_S))
                await until(lambda: host.in_use()["rows"] == 24)
                asking.cancel()

    asyncio.run(leave())
    settle(host)


def test_more_texts_than_may_wait_are_refused_and_the_others_answered(host, serve, body, monkeypatch):
    monkeypatch.setattr(host, "config", host.config.model_copy(update={"max_pending_texts": 40}))

    async def storm(address: str) -> list[httpx.Response]:
        """Send 150 requests to an engine that stands still until those that may not wait are refused."""
        options = {"headers": HEADERS, "limits": httpx.Limits(max_connections=200), "timeout": PATIENCE_S}
        async with httpx.AsyncClient(base_url=address, trust_env=False, **options) as client:
            with standing_still(host):
                ask = [client.post("/v1/completions", json=body | {"max_tokens": 2}) for _ in range(150)]
                asked = [asyncio.ensure_future(each) for each in ask]
                await until(lambda: sum(each.done() for each in asked) >= 110)
            return list(await asyncio.gather(*asked))

    with serve(host) as address:
        answers = asyncio.run(storm(address))
        too_many = httpx.post(f"{address}/generate", headers=HEADERS, json={"prompts": ["a"] * 41}, timeout=PATIENCE_S)
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) >= 1
    assert {answer.status_code for answer in answers} == {200, 429}
    assert {answer.json()["error"]["code"] for answer in refused} == {"overloaded"}
    assert {answer.json()["error"]["type"] for answer in refused} == {"rate_limit_error"}
    assert refused[0].headers["retry-after"]
    assert sum(answer.status_code == 200 for answer in answers) >= 40
    assert (too_many.status_code, too_many.json()["error"]["code"]) == (429, "overloaded")
    settle(host)


def test_safetensors_of_several_types_are_registered_under_their_names(http, tiny_model, unit_vectors):
    tensors = {
        "C1": torch.tensor(unit_vectors[4]),
        "half": torch.tensor(unit_vectors[5]).bfloat16(),
        "nulls": torch.tensor(unit_vectors[6:9]),
    }
    query = {"model": str(tiny_model)}
    answer = http.post("/vectors", params=query, content=save(tensors), headers=OCTETS).json()
    assert set(answer["labels"]) == {"C1", "half", "nulls/0", "nulls/1", "nulls/2"}
    assert sorted(answer["labels"].values()) == sorted(answer["vector_ids"])
    as_json = http.post("/vectors", json={"vectors": [unit_vectors[4].tolist()], "labels": ["C1"], **query}).json()
    assert as_json["vector_ids"] == [answer["labels"]["C1"]]
    listed = {row["vector_id"]: row for row in http.get("/vectors", params=query).json()["vectors"]}
    assert listed[answer["labels"]["nulls/1"]]["label"] == "nulls/1"
    assert listed[answer["labels"]["C1"]]["norm"] == pytest.approx(1.0, abs=1e-5)
    assert not listed[answer["labels"]["C1"]]["in_use"]


def test_listing_loads_no_model(http, host):
    loaded = host.health().get("model")
    listed = http.get("/vectors", params={"model": "demo"}).json()
    assert (listed["width"], listed["vectors"], listed["capacity"]) == (None, [], 64)
    assert host.health().get("model") == loaded


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        (b"no safetensors", "application/octet-stream", 400, "input"),
        (save({"a": torch.ones(255)}), "application/octet-stream", 400, "vector"),
        (save({"a": torch.full((256,), float("nan"))}), "application/vnd.safetensors", 400, "vector"),
        (save({"a": torch.ones(256, dtype=torch.int64)}), "application/octet-stream", 400, "vector"),
        (save({"a": torch.ones(1, 1, 256)}), "application/octet-stream", 400, "vector"),
        (save({}), "application/octet-stream", 400, "input"),
        (b"a,b", "text/csv", 415, "media_type"),
        (b"{", "application/json", 422, "input"),
        (b'{"vectors": [[1.0]], "labels": ["a", "b"]}', "application/json", 400, "input"),
        (save({"a" * 257: torch.ones(256)}), "application/octet-stream", 400, "input"),
        (save({"a\0": torch.ones(256)}), "application/octet-stream", 400, "input"),
        (save({"a": torch.ones(0, 256)}), "application/octet-stream", 400, "input"),
    ],
)
def test_bad_vectors_are_named(http, tiny_model, content, kind, status, code):
    query = {"model": str(tiny_model)}
    answer = http.post("/vectors", params=query, content=content, headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_a_full_bank_and_a_huge_body_are_refused(http, host, tiny_model, monkeypatch):
    many = np.random.default_rng(1).standard_normal((65, 256)).astype(np.float32)
    tensors = save({"many": torch.tensor(many)})
    query = {"model": str(tiny_model)}
    answer = http.post("/vectors", params=query, content=tensors, headers=OCTETS)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "bank_full")
    monkeypatch.setattr(host, "config", host.config.model_copy(update={"max_upload_mib": 0.01}))
    answer = http.post("/vectors", params=query, content=tensors, headers=OCTETS)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left(host: EngineHost) -> Iterator[None]:
    """After all of it nothing is in use."""
    yield
    settle(host)
