"""The playground's routes: what they take, how a text that fails is said, and which vectors they offer."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from driver.tests.console.conftest import serving
from driver.tests.vector_cards import vector_of
from safetensors.numpy import save
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.servers.services import cluster_environment

from poolbench.contracts.keys import RESTRICTED_PREFIX
from poolbench.errors import InputError, RestrictedError
from poolbench.library.directions import NamedDirection
from poolbench.settings import ClusterSettings
from poolbench_driver.cluster.services import Services
from poolbench_driver.console.app import Console
from poolbench_driver.console.playground import latest, piece_of, vectors_of_file
from poolbench_driver.records import Runs
from poolbench_driver.vectors.card import Application, Strength, Vector
from poolbench_driver.vectors.exporting import FORMATS

CHUNK = {"text": " one", "logprobs": {"tokens": [" one"]}, "finish_reason": None, "reading": {"scores": [0.5]}}


async def steerer(request: Request) -> Response:
    """Answers as a steerer that is killed after one token, or with the status that the prompt names."""
    prompt = (await request.json())["prompt"]
    if prompt.isdecimal():
        error = {"error": {"code": "a_code", "message": f"said with {prompt}"}}
        return JSONResponse(error, int(prompt), headers={"Retry-After": "999"})
    return StreamingResponse(iter([f"data: {json.dumps({'choices': [CHUNK]})}\n\n"]), media_type="text/event-stream")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("playground")
    upstream = Starlette(routes=[Route("/steerer/v1/completions", steerer, methods=["POST"])])
    with serving(upstream) as address, pytest.MonkeyPatch.context() as patch:
        for name, value in cluster_environment(address, folder).items():
            patch.setenv(name, value)
        services = Services(ClusterSettings.load())
        with serving(Console(Runs(folder), services).application()) as console:
            yield console


def ask(site: str, path: str, **request: Any) -> httpx.Response:
    return httpx.post(f"{site}/api/playground/{path}", headers={"Origin": site}, timeout=60, **request)


@pytest.mark.parametrize(("status", "answered"), [(401, 503), (403, 403), (404, 404), (429, 429), (400, 400)])
def test_an_error_before_the_first_token_keeps_its_status(site: str, status: int, answered: int) -> None:
    answer = ask(site, "text", json={"prompt": str(status)})
    message = answer.json()["error"]["message"]
    assert answer.status_code == answered
    if status == 401:  # the reader's own session is good
        assert "steerer refused the token" in message
    else:
        assert message == f"steerer: said with {status}"


def test_a_text_whose_service_ends_is_kept_and_says_so(site: str) -> None:
    piece, end = map(json.loads, ask(site, "text", json={"prompt": "a"}).text.splitlines())
    assert (piece["text"], piece["tokens"], piece["reading"]) == (" one", [" one"], {"scores": [0.5]})
    assert "ended its stream without saying that it was done" in end["error"]["message"]


@pytest.mark.parametrize(
    ("request_body", "said"),
    [
        ({"content": b"no json"}, "must be a JSON object"),
        ({"json": [1]}, "must be a JSON object"),
        ({"json": {"prompt": "a", "n": 9}}, "unknown field 'n'"),
        ({"json": {"prompt": "a", "max_tokens": 10**9}}, "from 1 to 512"),
        ({"content": b"x" * (2**20 + 1)}, "at most 1 MiB"),
    ],
)
def test_what_cannot_be_asked_is_refused(site: str, request_body: dict[str, Any], said: str) -> None:
    answer = ask(site, "text", **request_body)
    assert answer.status_code in (400, 413) and said in answer.json()["error"]["message"]


def test_without_a_cluster_there_is_no_playground(tmp_path: Path) -> None:
    with serving(Console(Runs(tmp_path)).application()) as address:
        assert httpx.get(f"{address}/playground").status_code == 404
        assert "playground" not in httpx.get(address).text


def npy(array: np.ndarray) -> bytes:
    np.save(file := io.BytesIO(), array)
    return file.getvalue()


def gguf_of(vector: Vector) -> bytes:
    """A file that carries the card of its vector."""
    return FORMATS["gguf"].files(vector)[""]


def test_vectors_of_files_are_read() -> None:
    vectors, _ = vectors_of_file(npy(np.array([1.0, 2.0])), "v.npy", "demo")
    assert {layer: vector.tolist() for layer, vector in vectors.items()} == {None: [1.0, 2.0]}
    data = save({"direction.3": np.ones(3, np.float32), "direction.1": np.eye(3, dtype=np.float32)[0]})
    vectors, _ = vectors_of_file(data, "v", "demo")
    assert {layer: vector.tolist() for layer, vector in vectors.items()} == {1: [1.0, 0.0, 0.0], 3: [1.0, 1.0, 1.0]}


def test_a_file_says_how_its_vectors_are_applied() -> None:
    """As `steer --vector` does: a card counts, and a file without one holds its own size."""
    _, applied = vectors_of_file(npy(np.full(4, 7.0)), "v.npy", "demo")
    assert applied == {"size": "alpha", "strength": 1.0, "positions": "generated"}
    for card, expected in (
        ({"strength": Strength(recommended=0.6)}, {"size": "strength", "strength": 0.6, "positions": "generated"}),
        ({"strength": Strength(reason="none is")}, {"size": "strength", "strength": None, "positions": "generated"}),
        (
            {"apply": Application(alpha_unit="absolute", positions="all"), "strength": Strength(recommended=8.0)},
            {"size": "alpha", "strength": 8.0, "positions": "all"},
        ),
    ):
        vector = vector_of(2, 4, **card)
        vectors, applied = vectors_of_file(gguf_of(vector), "v.gguf", "demo")
        assert applied == expected and list(vectors) == [2, 4]
        np.testing.assert_array_equal(vectors[4], vector.vectors[4])


def test_the_vector_of_another_model_or_of_a_sensitive_concept_is_refused() -> None:
    with pytest.raises(InputError, match=r"^v\.gguf: the vector is of other, not of demo; choose its model"):
        vectors_of_file(gguf_of(vector_of(2, model="other")), "v.gguf", "demo")
    with pytest.raises(RestrictedError):
        vectors_of_file(gguf_of(vector_of(2, concept="toxicity")), "v.gguf", "demo")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (npy(np.array([1.0, np.nan])), "v: the vector holds NaN or infinity"),
        (npy(np.ones((2, 2))), "numbers of shape"),
        (b"no such file", "v: the format of the file is unknown"),
        (b"PK" + bytes(70), "v: v cannot be read as tensors alone"),
    ],
)
def test_other_files_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        vectors_of_file(data, "v", "demo")
    assert "/tmp" not in str(caught.value)


def direction(run: str, concept: str, layer: int, key: str = "probe.1") -> NamedDirection:
    return NamedDirection(run, "demo", "r", concept, "A1_mean", layer, "C1", key, 0.9, 0.1, 0.1, 0.3, 0.4)


def test_directions_are_those_of_the_latest_run_and_no_sensitive_ones() -> None:
    listed = [
        direction("new", "contrast", 3),
        direction("new", "contrast", 2),
        direction("new", "harm", 1, f"{RESTRICTED_PREFIX}probe.1"),
        direction("old", "contrast", 1),
        direction("old", "cause", 1),
    ]
    usable, sensitive = latest(iter(listed))
    assert usable == [listed[0], listed[1], listed[4]] and sensitive == ["harm"]


def test_a_piece_of_a_chat_has_the_form_of_a_text() -> None:
    choice = {"delta": {"content": "Yes"}, "logprobs": {"content": [{"token": "Yes"}]}, "finish_reason": "stop"}
    assert piece_of(choice | {"steering_receipt": None}) == {
        "text": "Yes", "tokens": ["Yes"], "reading": None, "finish_reason": "stop", "receipt": None,
    }  # fmt: skip
