"""`POST /v1/embeddings` by the `openai` client: the vectors are those of `POST /embed`."""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from services.extractor.tests.conftest import TEXTS
from tests.servers.services import TOKEN, serving
from tests.waiting import PATIENCE_S

from poolbench.contracts.tables import vector_matrix
from poolbench.pooling.batch import Request
from poolbench_extractor.core import extract
from poolbench_extractor.embedding.texts import text_id
from poolbench_extractor.encode import PassageTexts
from poolbench_extractor.models.decoder import Decoder
from poolbench_extractor.service import create


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving({"extractor": create()}) as address:
        yield f"{address}/extractor"


@pytest.fixture(scope="module")
def embeddings(address: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key=TOKEN, max_retries=0, timeout=PATIENCE_S) as client:
        yield client.embeddings


@pytest.fixture(scope="module")
def http(address: str) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=address, headers=headers, timeout=PATIENCE_S, trust_env=False) as client:
        yield client


def vectors_of(answer: Any) -> np.ndarray:
    assert [entry.index for entry in answer.data] == list(range(len(answer.data)))
    return np.array([entry.embedding for entry in answer.data], dtype=np.float32)


@pytest.mark.parametrize(
    ("strategy", "layer"),
    [
        *(("A1_mean", layer) for layer in (0, 4, -1, "embedding", "final")),
        *((strategy, 4) for strategy in ("A2_max", "A7_random", "P2_first_token", "S1_attention", "S2_gradient")),
    ],
)
def test_vectors_are_those_of_embed(embeddings: Any, http: httpx.Client, strategy: str, layer: Any) -> None:
    answer = http.post("/embed", json={"texts": TEXTS, "strategy": strategy, "layer": layer}).raise_for_status()
    expected = np.array(answer.json()["vectors"], dtype=np.float32)
    asked: dict[str, Any] = {"model": f"demo+{strategy}@{layer}", "input": TEXTS}
    np.testing.assert_array_equal(vectors_of(embeddings.create(**asked)), expected)  # the client asks for base64
    np.testing.assert_array_equal(vectors_of(embeddings.create(**asked, encoding_format="float")), expected)
    entries = embeddings.create(**asked, encoding_format="base64").data  # a caller who names it decodes it
    decoded = [np.frombuffer(base64.b64decode(entry.embedding), dtype="<f4") for entry in entries]
    np.testing.assert_array_equal(decoded, expected)


def test_the_answer_has_the_form_of_the_api(http: httpx.Client, demo: Decoder) -> None:
    body = {"model": "demo+A1_mean@4", "input": TEXTS[:2], "user": "me", "dimensions": demo.width, "other": None}
    answer = http.post("/v1/embeddings", json=body).json()
    num_tokens = sum(map(len, demo.tokenizer(TEXTS[:2])["input_ids"]))
    assert answer.keys() == {"object", "model", "data", "usage"}
    assert (answer["object"], answer["model"]) == ("list", "demo+A1_mean@4")
    assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert [(entry["object"], entry["index"], len(entry["embedding"])) for entry in answer["data"]] == [
        ("embedding", 0, demo.width),
        ("embedding", 1, demo.width),
    ]


def test_one_input_may_stand_alone(embeddings: Any, demo: Decoder) -> None:
    (ids,) = demo.tokenizer(TEXTS[:1])["input_ids"]
    alone, listed, tokens, token_lists = (
        vectors_of(embeddings.create(model="demo+A7_random@4", input=sent))
        for sent in (TEXTS[0], TEXTS[:1], ids, [ids])
    )
    np.testing.assert_array_equal(alone, listed)
    np.testing.assert_array_equal(tokens, listed)
    np.testing.assert_array_equal(token_lists, listed)


@pytest.mark.parametrize("strategy", ["A1_mean", "A7_random", "P2_first_token"])
def test_token_ids_are_read_as_sent(embeddings: Any, llama: Decoder, saved_llama: Any, strategy: str) -> None:
    """With the special tokens of the tokenizer they are the text; without them the model reads no special token."""
    model, pooling = f"{saved_llama}+{strategy}@1", Request.of(strategy)
    with_special = llama.tokenizer(TEXTS)["input_ids"]
    without = llama.tokenizer(TEXTS, add_special_tokens=False)["input_ids"]
    assert with_special != without
    bare = PassageTexts([text_id(text) for text in TEXTS], TEXTS, bare=[True] * len(TEXTS))
    (expected,) = extract(llama, bare, {1: [pooling]}).values()
    by_text = vectors_of(embeddings.create(model=model, input=TEXTS))
    np.testing.assert_array_equal(vectors_of(embeddings.create(model=model, input=with_special)), by_text)
    answer = embeddings.create(model=model, input=without)
    np.testing.assert_array_equal(vectors_of(answer), vector_matrix(expected["vector"]))
    assert answer.usage.prompt_tokens == sum(map(len, without))


@pytest.mark.parametrize(
    ("change", "error", "code", "said"),
    [
        ({"model": "demo"}, openai.BadRequestError, "input", "MODEL+STRATEGY@LAYER, such as demo+A1_mean@4"),
        ({"model": "demo+A1_mean"}, openai.BadRequestError, "input", "MODEL+STRATEGY@LAYER"),
        ({"model": "demo@4"}, openai.BadRequestError, "input", "MODEL+STRATEGY@LAYER"),
        ({"model": "demo+A1_mean@.5"}, openai.BadRequestError, "input", "MODEL+STRATEGY@LAYER"),
        ({"model": "demo+A1_mean@99"}, openai.BadRequestError, "layer_out_of_range", "blocks 0..5"),
        ({"model": "demo+A1_maen@4"}, openai.NotFoundError, "unknown_strategy", "did you mean A1_mean"),
        ({"model": "demi+A1_mean@4"}, openai.NotFoundError, "unknown_model", "demo"),
        ({"model": "/etc+A1_mean@4"}, openai.BadRequestError, "model", "may not be named by requests"),
        ({"model": "demo+L1_pos_filtered@4"}, openai.BadRequestError, "config", "poolbench-driver embed"),
        ({"model": "demo+S4_sif@4"}, openai.BadRequestError, "config", "train passages of all concepts"),
        ({"model": "demo+S3_iti_probe@4"}, openai.BadRequestError, "config", "is supervised"),
        ({"dimensions": 64}, openai.BadRequestError, "config", "have 256 numbers"),
        ({"input": ["It rained.", ""]}, openai.BadRequestError, "input", "input 1: "),
        ({"input": "long " * 5_000}, openai.BadRequestError, "input", "the window is"),
        ({"input": [[0], [2**31 - 1]]}, openai.BadRequestError, "input", "input 1: the model's tokenizer"),
        ({"input": [-1]}, openai.BadRequestError, "input", "input.0: "),
        ({"input": []}, openai.BadRequestError, "input", "input: "),
        ({"input": ["a"] * 2_049}, openai.BadRequestError, "input", "input: "),
        ({"input": ["a" * 1_000_000] * 6}, openai.APIStatusError, "too_large", "characters in texts"),
        ({"encoding_format": "int8"}, openai.BadRequestError, "input", "encoding_format: "),
        ({"extra_body": {"truncate": True}}, openai.BadRequestError, "unknown_field", "truncate"),
    ],
)  # fmt: skip
def test_errors_are_those_of_the_api(
    embeddings: Any, change: dict[str, Any], error: type[openai.APIStatusError], code: str, said: str
) -> None:
    with pytest.raises(error) as raised:
        embeddings.create(**{"model": "demo+A1_mean@4", "input": "It rained."} | change)
    assert (raised.value.code, raised.value.type) == (code, "invalid_request_error")
    assert said in raised.value.message


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v1/embeddings", 405), ("GET", "/v1/models", 404), ("POST", "/v1/", 404)]
)
def test_unknown_paths_and_wrong_methods_are_errors_of_the_api(
    http: httpx.Client, method: str, path: str, status: int
) -> None:
    answer = http.request(method, path)
    assert answer.status_code == status and answer.json()["error"]["type"] == "invalid_request_error"
    answer = http.request(method, path, headers={"Authorization": "Bearer wrong"})
    assert answer.status_code == 401 and answer.json()["error"]["type"] == "authentication_error"
