"""The completions API, asked by the OpenAI client itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

PROMPT = "The river"
STRONG = 60.0


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="secret", max_retries=0, timeout=300) as client:
        yield client


@pytest.fixture(scope="module")
def steering(http: Any, tiny_model: Path, unit_vectors: np.ndarray) -> dict[str, Any]:
    body = {"vectors": unit_vectors[:2].tolist(), "model": str(tiny_model)}
    ids = http.post("/vectors", json=body).json()["vector_ids"]
    edits = [
        {"vector_id": ids[0], "layer": 2, "alpha": STRONG},
        {"vector_id": ids[1], "layer": 4, "strength": -0.5, "residual_norm": STRONG},
    ]
    return {"edits": edits, "positions": "generated"}


@pytest.fixture
def complete(client: openai.OpenAI, tiny_model: Path) -> Any:
    def ask(prompt: Any = PROMPT, *, steering: Any = None, **options: Any) -> Any:
        options = {"max_tokens": 12, "temperature": 0.0} | options
        extra = {"ignore_eos": True} | ({"steering": steering} if steering is not None else {})
        extra |= options.pop("extra_body", {})
        return client.completions.create(model=str(tiny_model), prompt=prompt, extra_body=extra, **options)

    return ask


def receipt(choice: Any) -> Any:
    return choice.model_extra["steering_receipt"]


def test_a_steered_completion_equals_the_own_verb_and_has_its_receipt(complete, http, tiny_model, steering):
    made = complete(steering=steering)
    body = {"model": str(tiny_model), "prompts": [PROMPT], "max_tokens": 12, "steering": steering}
    own = http.post("/generate", json=body).json()["texts"][0]
    assert made.choices[0].text.startswith(own["text"])  # that verb ends at EOS
    assert receipt(made.choices[0])["positions_changed"] == receipt(made.choices[0])["positions_expected"] == 24
    assert receipt(made.choices[0])["layers"] == [2, 4]
    assert receipt(made.choices[0])["alphas"] == [STRONG, -0.5 * STRONG]
    plain = complete()
    assert plain.choices[0].text != made.choices[0].text
    assert receipt(plain.choices[0]) is None
    assert (made.object, made.choices[0].finish_reason) == ("text_completion", "length")
    assert made.usage.completion_tokens == 12
    assert made.usage.total_tokens == made.usage.prompt_tokens + 12


def test_several_prompts_in_all_forms(complete, http, tiny_model, model_ref):
    from poolbench_steerer.tokens import tokens_of

    texts = ["The river", "Nobody saw"]
    ids = [list(tokens_of(model_ref).encode(text)) for text in texts]
    answers = [complete(texts), complete(ids)]
    singles = [complete(text) for text in texts] + [complete(ids[0])]
    assert [choice.index for choice in answers[0].choices] == [0, 1]
    batch = [choice.text for choice in answers[0].choices]
    assert [choice.text for choice in answers[1].choices] == batch
    assert [single.choices[0].text for single in singles] == [*batch, batch[0]]
    assert answers[0].usage.prompt_tokens == sum(map(len, ids))


def test_samples_are_repeatable_by_seed_and_differ_within_a_call(complete, steering):
    options = {"temperature": 1.0, "top_p": 0.95, "n": 3, "seed": 11, "steering": steering}
    first, second = (complete([PROMPT, "Nobody"], **options) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert texts == [choice.text for choice in second.choices]
    assert len(set(texts)) == 6
    assert complete(temperature=1.0, top_p=0.95, seed=12, steering=steering).choices[0].text == texts[1]
    unseeded = complete(temperature=1.0)
    again = complete(temperature=1.0, seed=unseeded.model_extra["seed"])
    assert again.choices[0].text == unseeded.choices[0].text


def test_a_stream_says_what_the_whole_answer_says(complete, steering):
    options = {"n": 2, "temperature": 0.8, "seed": 5, "steering": steering, "logprobs": 2}
    whole = complete([PROMPT, "Nobody"], **options)
    texts, last, usage = ["", "", "", ""], {}, None
    logprobs: list[list[float]] = [[], [], [], []]
    for chunk in complete([PROMPT, "Nobody"], stream=True, stream_options={"include_usage": True}, **options):
        usage = chunk.usage
        for choice in chunk.choices:
            assert choice.index not in last, "nothing follows the last chunk of a choice"
            texts[choice.index] += choice.text
            logprobs[choice.index] += choice.logprobs.token_logprobs
            if choice.finish_reason is not None:
                last[choice.index] = choice
    assert texts == [choice.text for choice in whole.choices]
    for index, choice in enumerate(whole.choices):
        assert logprobs[index] == pytest.approx(choice.logprobs.token_logprobs, abs=1e-5)
        assert receipt(last[index]) == receipt(choice)
    assert usage == whole.usage


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_with_a_valid_receipt(complete, steering, stream):
    full = complete(max_tokens=100, steering=steering).choices[0].text
    stop = full[10:13]
    answer = complete(max_tokens=100, steering=steering, stop=["never there", stop], stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    assert "".join(choice.text for choice in choices) == full[: full.index(stop)]
    assert choices[-1].finish_reason == "stop"
    proof = receipt(choices[-1])
    # Two layers; the engine may have been a step ahead, and what it did then is proved too.
    assert proof["positions_changed"] == proof["positions_expected"] >= 2 * 2
    assert proof["positions_changed"] <= 2 * 100


def test_echo_and_log_probabilities(complete):
    echoed = complete(echo=True).choices[0].text
    assert echoed == PROMPT + complete().choices[0].text
    found = complete(logprobs=3).choices[0].logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == 12
    for chosen, best in zip(found.token_logprobs, found.top_logprobs, strict=True):
        assert chosen == pytest.approx(max(best.values()))  # greedy
        assert sum(map(math.exp, best.values())) <= 1 + 1e-5


def test_models_are_listed(client, tiny_model, complete):
    complete()
    assert str(tiny_model) in [model.id for model in client.models.list()]
    assert client.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("demmo")


@pytest.mark.parametrize(
    ("options", "error", "code"),
    [
        ({"steering": {"vector_id": "nope", "layer": 2, "alpha": 1.0}}, openai.NotFoundError, "unknown_vector"),
        ({"steering": {"vector": [1.0] * 256, "layer": 6, "alpha": 1.0}}, openai.BadRequestError, "layer_out_of_range"),
        ({"steering": {"vector": [1.0] * 256, "layer": 1, "alpha": 1e9}}, openai.BadRequestError, "input"),
        ({"steering": {"vector": [1.0] * 256}}, openai.BadRequestError, "input"),
        ({"prompt": [70000]}, openai.BadRequestError, "input"),
        ({"prompt": "fox " * 400}, openai.BadRequestError, "prompt_too_long"),
        ({"max_tokens": 5000}, openai.BadRequestError, "prompt_too_long"),
        ({"presence_penalty": 1.0}, openai.BadRequestError, "input"),
        ({"stream": True, "prompt": "fox " * 400}, openai.BadRequestError, "prompt_too_long"),
    ],
)
def test_errors_are_those_of_the_api(complete, options, error, code):
    with pytest.raises(error) as raised:
        complete(**options)
    assert raised.value.code == code
    assert raised.value.type == "invalid_request_error"


def test_unknown_fields_models_and_tokens_are_refused(client, address, tiny_model):
    with pytest.raises(openai.BadRequestError, match="colour") as raised:
        client.completions.create(model=str(tiny_model), prompt="a", extra_body={"colour": "red"})
    assert (raised.value.code, raised.value.param) == ("unknown_field", "colour")
    with pytest.raises(openai.NotFoundError, match="did you mean demo"):
        client.completions.create(model="demmo", prompt="a")
    with (
        openai.OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_what_vllm_bench_serve_sends_is_answered(complete):
    """Its client marks a request as failed that holds an option the server refuses."""
    options = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": None}
    neutral = {"repetition_penalty": 1.0, "top_k": -1, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0}
    chunks = list(complete(extra_body=neutral, **options))
    assert chunks[-1].usage.completion_tokens == 12
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == complete().choices[0].text


@pytest.mark.parametrize(("name", "value"), [("top_k", 5), ("repetition_penalty", 1.1), ("logit_bias", {"5": 1})])
def test_an_option_that_is_not_offered_is_named(client, tiny_model, name, value):
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=str(tiny_model), prompt="a", extra_body={name: value})
    assert raised.value.param == name
    assert name in raised.value.message


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("POST", "/v1/responses", 404, None),
        ("GET", "/v1/embeddings", 404, None),
        ("DELETE", "/v1/", 404, None),
        ("GET", "/v1/completions", 405, "POST"),
        ("DELETE", "/v1/models", 405, "GET"),
        ("POST", "/v1/models/demo", 405, "GET"),
    ],
)
def test_unknown_paths_and_wrong_methods_are_errors_of_the_api(http, method, path, status, allow):
    answer = http.request(method, path, json={})
    assert answer.status_code == status
    assert answer.headers.get("allow") == allow
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert http.request(method, path, headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_the_largest_seed_takes_several_samples(complete):
    made = complete(temperature=1.0, n=3, seed=2**63 - 1)
    assert len({choice.text for choice in made.choices}) == 3
