"""Hostile values in every field of every verb: an error that names the field, and no engine is started for it."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.system.gate.test_bounds import inlined, unbounded

from poolbench.http.api import build_api
from poolbench.settings import SteererSettings
from poolbench_steerer.host import EngineHost
from poolbench_steerer.service import SteererService

pytestmark = pytest.mark.lane(name="engines")

GENERATE = {"prompts": ["a"], "model": "demo"}
COMPLETE = {"prompt": "a", "model": "demo"}
PERPLEXITY = {"texts": ["a"], "model": "demo"}
EDIT = {"vector": [1.0], "layer": 2, "alpha": 1.0}
HUGE = (2**31, 2**63, 2**64, 2**70, 10**400, -1, -(2**70))


@pytest.fixture(scope="module")
def host() -> Iterator[EngineHost]:
    host = EngineHost(SteererSettings())
    yield host
    assert host.health()["state"] == "idle", "nothing here may start an engine"
    host.close()


@pytest.fixture(scope="module")
def client(host: EngineHost) -> Iterator[TestClient]:
    api = build_api(SteererService(host), "secret")
    with TestClient(api, headers={"Authorization": "Bearer secret"}, raise_server_exceptions=False) as client:
        yield client


def refused(client: TestClient, verb: str, body: Any) -> str:
    """The message of a refusal, which has the form and the status of its API."""
    answer = client.post(verb, content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code == (400 if verb.startswith("/v1") else 422), answer.text
    message = answer.json()["error"]["message"]
    assert len(message) < 2000
    return message


Case = tuple[str, dict[str, Any], str]  # verb, body, what the message names


def each(verb: str, body: dict[str, Any], field: str, values: Iterable[Any], name: str = "") -> Iterator[Case]:
    for value in values:
        yield verb, body | {field: value}, name or field


def steering(verb: str, body: dict[str, Any]) -> Iterator[Case]:
    for field in ("layer", "positions"):
        for value in (*HUGE, True, 0.5):
            yield verb, body | {"steering": EDIT | {field: value}}, field
    for field in ("alpha", "strength", "residual_norm"):
        for value in (1e9, -1e9, float("inf"), float("nan"), True, 10**400):
            yield verb, body | {"steering": {"vector_id": "a", "layer": 2, field: value}}, field
    for value in (True, float("nan"), 1e300):
        yield verb, body | {"steering": EDIT | {"vector": [1.0, value]}}, "vector.1"
    yield verb, body | {"steering": EDIT | {"operation": "double"}}, "operation"
    yield verb, body | {"steering": EDIT | {"positions": "some"}}, "positions"
    yield verb, body | {"steering": EDIT | {"vector": [1.0] * 65_537}}, "vector"
    yield verb, body | {"steering": {"edits": [EDIT] * 65}}, "edits"
    yield verb, body | {"steering": EDIT | {"vector": None, "vector_id": "\ud800"}}, "vector_id"


def texts() -> Iterator[Case]:
    for verb, body in (("/generate", GENERATE), ("/v1/completions", COMPLETE)):
        yield from each(verb, body, "max_tokens", (*HUGE, True, 1.5, "1"))
        yield from each(verb, body, "seed", (2**63, 2**64, -1, True, 1.5))
        yield from each(verb, body, "temperature", (2.1, -0.1, float("inf"), float("nan"), True, "0", 10**400))
        yield from each(verb, body, "top_p", (0, 1.1, float("nan"), False))
        yield from steering(verb, body)
    for verb, body in (("/generate", GENERATE), ("/v1/completions", COMPLETE), ("/perplexity", PERPLEXITY)):
        yield from each(verb, body, "model", ("m" * 5000, "a\0b", "\ud800", 5, True))
    lists = ([], ["a"] * 1025, "a", ["a" * (2**20 + 1)], ["\ud800"], [5], None)
    yield from each("/generate", GENERATE, "prompts", lists)
    yield from each("/perplexity", PERPLEXITY, "texts", lists)
    yield "/generate", GENERATE | {"prompts": ["a" * 2**20] * 9}, "9437184 characters"
    yield "/perplexity", PERPLEXITY | {"prompts": ["a"] * 1025}, "prompts"


def completions() -> Iterator[Case]:
    yield from each("/v1/completions", COMPLETE, "n", (*HUGE, True, 0, 1025))
    yield from each("/v1/completions", COMPLETE, "logprobs", (*HUGE, True, 21, 1.0))
    yield from each("/v1/completions", COMPLETE, "best_of", (*HUGE, True))
    yield from each("/v1/completions", COMPLETE, "stop", (["a"] * 17, "a" * 257, ["\udfff"], "", 5, [5]))
    yield from each("/v1/completions", COMPLETE, "top_k", (2**31, -2, "0", True))
    for field in ("frequency_penalty", "presence_penalty", "repetition_penalty", "min_p"):
        yield from each("/v1/completions", COMPLETE, field, (2.1, -2.1, float("nan"), float("inf"), True, "0", 10**400))
    yield from each("/v1/completions", COMPLETE, "min_tokens", (*HUGE, True, 1.5, "1"))
    for field in ("stop_token_ids", "allowed_token_ids"):
        yield from each("/v1/completions", COMPLETE, field, (*([value] for value in (*HUGE, True)), [1] * 1025, 5))
    biases = ({"-1": 1}, {"a": 1}, {"9" * 10: 1}, {"1": 101}, {"1": float("nan")}, {"1": True}, {"1": 10**400}, 5)
    yield from each("/v1/completions", COMPLETE, "logit_bias", biases)
    yield from each("/v1/completions", COMPLETE, "bad_words", (["a"] * 17, ["a" * 257], ["\udfff"], [""], 5))
    schemas = ({"a": {}} | {str(number): {} for number in range(256)}, {"pattern": "a"}, {"const": "\ud800"}, 5)
    yield from each("/v1/completions", COMPLETE, "structured_outputs", ({"json": one} for one in schemas))
    forms = ({"regex": "a"}, {"grammar": "a"}, {"structural_tag": "a"}, {"choice": []}, {"choice": [""]}, {}, 5)
    yield from each("/v1/completions", COMPLETE, "structured_outputs", forms)
    for field in ("vllm_xargs", "cache_salt", "kv_transfer_params", "priority", "request_id", "prompt_embeds"):
        yield from each("/v1/completions", COMPLETE, field, ("a", {"a": 1}, True))
    prompts = ([], [[]], ["a"] * 1025, [1, "a"], {}, "a" * (2**20 + 1), ["a", "\ud800"], [[1], 5])
    yield from each("/v1/completions", COMPLETE, "prompt", (*prompts, *([value] for value in (*HUGE, True))))


def others() -> Iterator[Case]:
    yield from each("/tokenize", {}, "prompt", ("\ud800", "a" * (2**20 + 1), 5, None))
    yield from each("/detokenize", {}, "tokens", ([value] for value in (*HUGE, True)))
    body = {"vectors": [[1.0]]}
    yield from each("/vectors", body, "labels", (["a\0"], ["a" * 5000], [5]))
    yield "/vectors", body | {"labels": ["\ud800"]}, "JSON"  # its reader knows no lone surrogate
    yield from each("/vectors", body, "vectors", ([], [[]], [[True]], [["a"]], [[float("nan")]], [[1e300]], 5))


@pytest.mark.parametrize("cases", [texts, completions, others])
def test_hostile_values_are_refused_by_name(client: TestClient, cases: Callable[[], Iterator[Case]]) -> None:
    for verb, body, name in cases():
        assert name in refused(client, verb, body), (verb, name, str(body)[:200])


@pytest.mark.parametrize("verb", ["/generate", "/v1/completions", "/perplexity", "/vectors", "/tokenize"])
@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"null", b"[]", b"5", b'{"\\ud800": 1}', b"[" * 100_000, b"9" * 5000]
)
def test_bodies_that_are_no_request(client: TestClient, verb: str, content: bytes) -> None:
    answer = client.post(verb, content=content, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["message"]


def test_unknown_fields_are_named_in_short(client: TestClient) -> None:
    sent = client.post("/v1/completions", json=COMPLETE | {"n": True, "f" * 100_000: 1}).json()["error"]
    assert (sent["code"], sent["param"]) == ("unknown_field", "f" * 100)
    assert len(sent["message"]) < 200


@pytest.mark.parametrize("name", ["m" * 5000, "a%00b", "%1b[31m", "demmo"])
def test_names_of_models_in_addresses(client: TestClient, name: str) -> None:
    for path in (f"/v1/models/{name}", f"/vectors?model={name}", f"/tokenizer_info?model={name}"):
        assert client.get(path).status_code in (400, 404, 422)


def test_every_field_has_its_bounds_in_the_documents(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    parts = document["components"]["schemas"]
    verbs = [verb for path in document["paths"].values() for verb in path.values()]
    bodies = [part for name, part in parts.items() if name.endswith("Body") and "Error" not in name]
    queries = [parameter["schema"] for verb in verbs for parameter in verb.get("parameters", [])]
    assert len(bodies) >= 6
    assert [place for schema in [*bodies, *queries] for place in unbounded(inlined(schema, parts))] == []
