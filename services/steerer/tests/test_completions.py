"""The completions API, asked by the OpenAI client itself: completions and chats, and what clients send beside them."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from transformers import AutoTokenizer

pytestmark = pytest.mark.lane(name="engines")

PROMPT = "The river"
STRONG = 60.0


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
    # That verb ends at EOS, and shows bytes of a character that the text ends in.
    assert made.choices[0].text.startswith(own["text"].rstrip("\ufffd"))
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


def test_several_texts_without_sampling_are_the_likeliest_one(complete, steering):
    likeliest = complete(steering=steering, logprobs=2).choices[0]
    for choice in complete(n=2, steering=steering, logprobs=2).choices:
        assert (choice.text, receipt(choice)) == (likeliest.text, receipt(likeliest))
        assert choice.logprobs.token_logprobs == pytest.approx(likeliest.logprobs.token_logprobs, abs=1e-4)


#: Values that the bounds of a request allow; vLLM alone would refuse some of them together.
ALLOWED: dict[str, list[Any]] = {
    "prompt": [PROMPT, "", [PROMPT, "Nobody"], [5, 6, 7], [[5, 6], [7]]],
    "max_tokens": [1, 3],
    "n": [1, 2],
    "temperature": [0, 1e-6, 0.005, 0.7, 2],
    "top_p": [1, 0.01],
    "seed": [None, 0, 2**63 - 1],
    "stop": [None, "e", ["e", "zz"], []],
    "echo": [False, True],
    "logprobs": [None, 0, 20],
    "stream": [False, True],
    "ignore_eos": [False, True],
}


def test_what_the_bounds_allow_is_answered(http, tiny_model):
    chance = random.Random(0)
    for _ in range(80):
        body = {name: chance.choice(values) for name, values in ALLOWED.items()} | {"model": str(tiny_model)}
        answer = http.post("/v1/completions", json=body)
        assert answer.status_code == 200 and '"error"' not in answer.text, (body, answer.text)


@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_prompt_is_echoed_as_nothing(complete, stream):
    silent = complete("", max_tokens=3).choices[0].text
    answer = complete("", max_tokens=3, echo=True, logprobs=1, stream=stream)
    texts = [chunk.choices[0].text for chunk in answer] if stream else [answer.choices[0].text]
    assert "".join(texts) == silent
    batch = complete(["", PROMPT], max_tokens=3, echo=True).choices
    assert batch[0].text == silent and batch[1].text.startswith(PROMPT)


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


def scores_of(choice: Any) -> list[float | None]:
    return choice.model_extra["reading"]["scores"]


def test_a_probe_reads_along_in_streams_and_whole_answers(complete, steering, unit_vectors):
    """One score per token, at any layer beside the steering; the choices of a call are read apart."""
    reading = {"vector": (3 * unit_vectors[5]).tolist(), "layer": 3, "offset": 0.5}
    options = {"n": 2, "temperature": 0.8, "seed": 5, "steering": steering}
    whole = complete([PROMPT, "Nobody"], extra_body={"reading": reading}, **options)
    unread = complete([PROMPT, "Nobody"], **options)
    assert [choice.text for choice in whole.choices] == [choice.text for choice in unread.choices]
    scores: list[list[Any]] = [[], [], [], []]
    for chunk in complete([PROMPT, "Nobody"], stream=True, logprobs=0, extra_body={"reading": reading}, **options):
        for choice in chunk.choices:
            assert len(scores_of(choice)) == len(choice.logprobs.tokens)
            scores[choice.index] += scores_of(choice)
            at = choice.model_extra["reading"].get("layer")
            assert at == (3 if choice.finish_reason else None)
    assert [len(of_choice) for of_choice in scores] == [12] * 4
    for choice in whole.choices:
        assert scores_of(choice) == pytest.approx(scores[choice.index], abs=1e-4)
    assert len({scores_of(choice)[3] for choice in whole.choices}) == 4
    assert "reading" not in unread.choices[0].model_extra


def test_several_readings_and_the_prompt_are_scored(complete, unit_vectors):
    readings = [{"vector": vector.tolist(), "layer": layer} for layer, vector in enumerate(unit_vectors[:3])]
    options = {"echo": True, "logprobs": 0}
    several = complete(extra_body={"reading": readings}, **options).choices[0]
    for number, reading in enumerate(readings):
        one = complete(extra_body={"reading": reading}, **options).choices[0]
        first, *scores = several.model_extra["reading"][number]["scores"]
        assert first is None and scores_of(one)[0] is None
        assert scores == pytest.approx(scores_of(one)[1:], abs=1e-4)
        assert len(scores) + 1 == len(one.logprobs.tokens)
    only_prompt = complete(extra_body={"reading": readings[2]}, echo=True, max_tokens=0).choices[0]
    assert scores_of(only_prompt)[1:] == pytest.approx(scores[: len(scores) - 12], abs=1e-4)
    unechoed = complete(extra_body={"reading": readings[2]}).choices[0]
    assert scores_of(unechoed) == pytest.approx(scores[-12:], abs=1e-4)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("steered", [False, True])
def test_a_reading_ends_a_text(complete, steering, unit_vectors, stream, steered):
    """Its last token has the first score above the bound."""
    options = {"max_tokens": 24} | ({"steering": steering} if steered else {})
    reading = {"vector": unit_vectors[3].tolist(), "layer": 4, "offset": 0.5}
    whole = complete(extra_body={"reading": reading}, logprobs=0, **options).choices[0]
    scores = whole.model_extra["reading"]["scores"]
    last = scores.index(max(scores[:16]))
    bound = (scores[last] + max(scores[:last], default=scores[last] - 1)) / 2
    stop_when = {"above": bound, "for_tokens": 1}
    answer = complete(extra_body={"reading": reading | {"stop_when": stop_when}}, logprobs=0, stream=stream, **options)
    choices = [choice for chunk in answer for choice in chunk.choices] if stream else answer.choices
    as_long = complete(**options | {"max_tokens": last + 1}).choices[0]
    assert "".join(choice.text for choice in choices) == as_long.text
    read = [value for choice in choices for value in choice.model_extra["reading"]["scores"]]
    assert read == pytest.approx(scores[: last + 1], abs=1e-4)
    assert (choices[-1].finish_reason, choices[-1].model_extra["stop_reason"]) == ("stop", "stop_when")
    stopped = choices[-1].model_extra["reading"]["stopped"]
    assert stopped == {"reading": 0, "score": "token", "value": pytest.approx(scores[last], abs=1e-4), "for_tokens": 1}
    if steered:
        proof = receipt(choices[-1])
        assert proof["stopped"] == stopped
        assert proof["positions_expected"] == 2 * (last + 1)  # at two layers


def test_a_rule_over_the_mean_that_never_holds_ends_nothing(complete, unit_vectors):
    reading = {"vector": unit_vectors[3].tolist(), "layer": 4}
    rule = {"above": 1e6, "for_tokens": 2, "score": "mean"}
    plain = complete(extra_body={"reading": reading}).choices[0]
    ruled = complete(extra_body={"reading": reading | {"stop_when": rule}}).choices[0]
    assert (ruled.text, ruled.finish_reason) == (plain.text, plain.finish_reason)
    assert "stopped" not in ruled.model_extra["reading"]


POOL = {"layer": 3, "pool": ["A1_mean", "W2_last_k:k=2"]}


def vectors_of(pooled: Any) -> np.ndarray:
    """The vectors of a prompt and its answer by each strategy, [strategies, 2, width]."""
    assert list(pooled["pool"]) == POOL["pool"] and pooled["layer"] == 3
    return np.array([[one[part]["vector"] for part in ("prompt", "answer")] for one in pooled["pool"].values()])


@pytest.mark.parametrize("steered", [False, True])
def test_pooled_vectors_come_at_the_end_of_streams_and_whole_answers(complete, steering, unit_vectors, steered):
    """Alone, and between two directions of which the second ends no text; n choices are pooled apart."""
    along = [{"vector": vector.tolist(), "layer": 3} for vector in unit_vectors[:2]]
    along[1]["stop_when"] = {"above": 1e6}
    options = {"n": 2, "temperature": 0.8, "seed": 5} | ({"steering": steering} if steered else {})
    whole = complete([PROMPT, "Nobody"], extra_body={"reading": POOL}, **options).choices
    texts = [choice.text for choice in complete([PROMPT, "Nobody"], **options).choices]
    assert [choice.text for choice in whole] == texts
    between = {"reading": [along[0], POOL, along[1]]}
    streamed, last = ["", "", "", ""], {}
    for chunk in complete([PROMPT, "Nobody"], stream=True, extra_body=between, **options):
        for choice in chunk.choices:
            first, pooled, second = choice.model_extra["reading"]
            assert first["scores"] != second["scores"] and "scores" not in pooled
            assert (pooled == {}) == (choice.finish_reason is None)
            streamed[choice.index] += choice.text
            last[choice.index] = pooled
    assert streamed == texts
    for choice in whole:
        of_choice = vectors_of(choice.model_extra["reading"])
        np.testing.assert_allclose(of_choice, vectors_of(last[choice.index]), rtol=0, atol=1e-4)
        assert np.ptp(of_choice.mean(axis=2)) > 0
    assert not np.allclose(*(vectors_of(choice.model_extra["reading"])[:, 1] for choice in whole[:2]))


def test_the_reading_that_ends_a_text_has_its_number_in_the_request(complete, unit_vectors):
    along = {"vector": unit_vectors[0].tolist(), "layer": 3, "stop_when": {"below": 1e6, "for_tokens": 4}}
    choice = complete(extra_body={"reading": [POOL, along]}).choices[0]
    pooled, read = choice.model_extra["reading"]
    assert read["stopped"]["reading"] == 1 and len(read["scores"]) == 4
    shorter = complete(extra_body={"reading": POOL}, max_tokens=4).choices[0]
    expected = vectors_of(shorter.model_extra["reading"])
    np.testing.assert_allclose(vectors_of(pooled), expected, rtol=0, atol=1e-4)


def test_a_prompt_alone_is_pooled_too(complete):
    only_prompt = complete(extra_body={"reading": POOL}, echo=True, max_tokens=0).choices[0]
    whole = complete(extra_body={"reading": POOL}).choices[0]
    pooled = only_prompt.model_extra["reading"]["pool"]["A1_mean"]
    assert pooled["answer"] == {"vector": None, "reason": "passage 'answer' has no real token"}
    expected = whole.model_extra["reading"]["pool"]["A1_mean"]["prompt"]["vector"]
    assert pooled["prompt"]["vector"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"layer": 6}, 400, "blocks 0..5"),
        ({"layer": None}, 400, "reading.layer"),
        ({"layer": -1}, 400, "reading.layer"),
        ({"pool": []}, 400, "reading.pool"),
        ({"pool": None}, 400, "reading.pool"),
        ({"pool": ["A1_mean"] * 17}, 400, "reading.pool"),
        ({"pool": ["A1_mean", "A1_meen"]}, 400, "did you mean A1_mean"),
        ({"pool": ["S1_attention"]}, 400, "S1_attention needs inflow"),
        ({"pool": ["L3_entity"]}, 400, "needs annotation"),
        ({"pool": ["A7_random"]}, 400, "needs the id of the passage"),
        ({"pool": ["S4_sif"]}, 400, "the train passages of a run"),
        ({"pool": ["W2_last_k", "A1_mean", "W2_last_k:k=16"]}, 400, "W2_last_k stands in pool twice"),
        ({"pool": ["W2_last_k:k=0"]}, 400, "greater than or equal to 1"),
        ({"offset": 0.5}, 400, "reading.offset"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_pooled_is_refused(http, tiny_model, stream, change, status, said):
    body = {"prompt": PROMPT, "model": str(tiny_model), "stream": stream, "reading": POOL | change}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]


def test_too_much_to_pool_is_refused(http, tiny_model, monkeypatch):
    body = {"prompt": PROMPT, "model": str(tiny_model), "reading": [POOL, POOL]}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 400 and "one reading of a request may have pool" in answer.text
    monkeypatch.setattr("poolbench_steerer.completions.verbs.MAX_POOLED_VALUES", 2_000)
    answer = http.post("/v1/completions", json=body | {"reading": POOL, "n": 2})
    assert answer.status_code == 413 and "2048 numbers of pooled vectors" in answer.text


def test_edits_apply_where_a_condition_holds(complete, steering, unit_vectors):
    """The layers of edits are 2 and later. Above -1e6 holds everywhere, below it nowhere."""
    read = {"vector": unit_vectors[3].tolist(), "layer": 0}
    plain, unsteered = complete(steering=steering).choices[0], complete().choices[0]
    always = complete(steering=steering | {"where": {"read": read, "above": -1e6}}).choices[0]
    never = complete(steering=steering | {"where": {"read": read, "below": -1e6}}).choices[0]
    assert (always.text, never.text) == (plain.text, unsteered.text)
    where = receipt(always)["where"]
    assert (where["layer"], where["above"], where["positions_spared"]) == (0, -1e6, 0)
    proof = receipt(never)
    assert proof["positions_changed"] == proof["positions_applied"] == 0
    assert proof["where"]["positions_spared"] > 0


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"vector": None, "vector_id": "nope"}, 404, "is not registered"),
        ({"layer": 6}, 400, "blocks 0..5"),
        ({"vector": [1.0] * 255}, 400, "hidden width is 256"),
        ({"vector": [0.0] * 256}, 400, "is zero"),
        ({"vector": [float("nan")] * 256}, 400, "reading.vector.0"),
        ({"offset": 1e9}, 400, "reading.offset"),
        ({"alpha": 1.0}, 400, "reading.alpha"),
        ({"layer": None}, 400, "give the layer of the vector"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_read_is_refused_as_steering_is(http, unit_vectors, tiny_model, stream, change, status, said):
    reading = {"vector": unit_vectors[0].tolist(), "layer": 2} | change
    body = {"prompt": PROMPT, "model": str(tiny_model), "stream": stream, "reading": reading}
    answer = http.post("/v1/completions", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]


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


@pytest.mark.parametrize(
    ("options", "error", "code"),
    [
        ({"steering": {"vector_id": "nope", "layer": 2, "alpha": 1.0}}, openai.NotFoundError, "unknown_vector"),
        ({"steering": {"vector": [1.0] * 256, "layer": 6, "alpha": 1.0}}, openai.BadRequestError, "layer_out_of_range"),
        ({"prompt": [70000]}, openai.BadRequestError, "input"),
        ({"prompt": "fox " * 400}, openai.BadRequestError, "prompt_too_long"),
        ({"presence_penalty": 2.5}, openai.BadRequestError, "input"),
        ({"extra_body": {"stop_token_ids": [70000]}}, openai.BadRequestError, "input"),
        ({"extra_body": {"allowed_token_ids": [70000]}}, openai.BadRequestError, "input"),
        ({"logit_bias": {"70000": 1}}, openai.BadRequestError, "input"),
        ({"stream": True, "prompt": "fox " * 400}, openai.BadRequestError, "prompt_too_long"),
    ],
)
def test_errors_are_those_of_the_api(complete, options, error, code):
    with pytest.raises(error) as raised:
        complete(**options)
    assert raised.value.code == code
    assert raised.value.type == "invalid_request_error"


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


TALK = [
    {"role": "user", "content": "Where does the river run?"},
    {"role": "assistant", "content": "Past the mill."},
    {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "then?"}]},
]
TALK_SAID = [TALK[0], TALK[1], {"role": "user", "content": "And then?"}]
OPTIONS: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0}


@pytest.fixture
def ask(client: openai.OpenAI, tiny_model: Path) -> Any:
    def chat(messages: Any = TALK, extra: Any = None, **options: Any) -> Any:
        body = {"ignore_eos": True} | (extra or {})
        return client.chat.completions.create(
            model=str(tiny_model), messages=messages, extra_body=body, **OPTIONS | options
        )

    return chat


def prompt_ids(folder: Path) -> list[int]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(TALK_SAID, tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_a_chat_is_the_completion_of_the_models_own_template(ask, http, tiny_model):
    ids = prompt_ids(tiny_model)
    made = ask(logprobs=True, top_logprobs=2)
    body = {"model": str(tiny_model), "prompt": ids, "ignore_eos": True, "logprobs": 2} | OPTIONS
    (completed,) = http.post("/v1/completions", json=body).json()["choices"]
    (choice,) = made.choices
    assert (made.object, choice.message.role, choice.finish_reason) == ("chat.completion", "assistant", "length")
    assert choice.message.content == completed["text"]
    assert made.usage.prompt_tokens == len(ids) and made.usage.completion_tokens == 12
    found = choice.logprobs.content
    assert [token.token for token in found] == completed["logprobs"]["tokens"]
    assert [token.logprob for token in found] == pytest.approx(completed["logprobs"]["token_logprobs"], abs=1e-4)
    for token in found:
        best, second = token.top_logprobs
        assert best.logprob == token.logprob >= second.logprob  # greedy
        assert bytes(best.bytes).decode(errors="replace") == best.token or best.token.startswith("token_id:")


def test_a_stream_of_a_chat_says_what_the_whole_answer_says(ask):
    options = {"n": 2, "temperature": 0.8, "seed": 5, "logprobs": True}
    whole = ask(**options)
    texts, logprobs, roles, usage = ["", ""], [[], []], ["", ""], None
    for chunk in ask(stream=True, stream_options={"include_usage": True}, **options):
        assert chunk.object == "chat.completion.chunk"
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            roles[choice.index] += choice.delta.role or ""
            if choice.logprobs is not None:  # the chunk with the role has none
                logprobs[choice.index] += [token.logprob for token in choice.logprobs.content]
    assert texts == [choice.message.content for choice in whole.choices] and texts[0] != texts[1]
    assert roles == ["assistant"] * 2 and usage == whole.usage
    for index, choice in enumerate(whole.choices):
        assert logprobs[index] == pytest.approx([token.logprob for token in choice.logprobs.content], abs=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"messages": [{"role": "system", "content": "Be brief."}]}, "refuses these messages: only users and assist"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "judge", "content": "a"}]}, "messages.0.role"),
        ({"max_tokens": 1000}, "window"),
        ({"messages": [{"role": "user", "content": "loaf " * 400}]}, "window"),
        ({"top_logprobs": 2}, "top_logprobs is for logprobs: true"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"n": 10**6}, "equal to 1024"),
        ({"logprobs": True, "top_logprobs": 10**3}, "top_logprobs"),
    ],
)
def test_what_cannot_be_answered_is_a_400_that_says_why(ask, change, said):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(**change)
    assert said in caught.value.message


TOWN = {
    "type": "object",
    "properties": {"town": {"enum": ["Delft", "Gouda"]}},
    "required": ["town"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": TOWN, "strict": True}}


@pytest.fixture(scope="module")
def no_spaces(tiny_model: Path) -> dict[str, int]:
    """A bias against white space, which JSON allows, and of which an untrained model may write no end."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    return {str(token): -100 for token in range(len(tokenizer)) if tokenizer.decode([token]).isspace()}


@pytest.mark.parametrize("stream", [False, True])
def test_a_steered_model_calls_a_tool_and_is_told_the_result(ask, steering, no_spaces, stream):
    options = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 120, "stream": stream, "logit_bias": no_spaces}
    answer = ask(extra={"steering": steering, "ignore_eos": False}, **options)
    if stream:
        choices = [choice for chunk in answer for choice in chunk.choices]
        parts = [call.function for choice in choices for call in choice.delta.tool_calls or ()]
        (name,), said = [part.name for part in parts if part.name], "".join(part.arguments or "" for part in parts)
    else:
        choices = answer.choices
        (call,) = choices[0].message.tool_calls
        name, said = call.function.name, call.function.arguments
    assert name == "weather" and json.loads(said)["town"] in ("Delft", "Gouda")
    proof = receipt(choices[-1])
    assert proof["positions_changed"] == proof["positions_expected"] > 0
    called = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": said}}
    talk = [*TALK, {"role": "assistant", "content": "", "tool_calls": [called]}]
    talk += [{"role": "tool", "tool_call_id": "a", "content": "Rain."}]
    assert ask(talk, tools=[TOOL]).choices[0].message.role == "assistant"


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": TOWN}}},
        {"structured_outputs": {"json": TOWN}},
    ],
)
def test_a_steered_text_has_the_form_that_is_asked_for(ask, complete, steering, unit_vectors, no_spaces, form):
    reading = {"vector": unit_vectors[5].tolist(), "layer": 3}
    options = {"max_tokens": 60, "logprobs": 1, "logit_bias": no_spaces}
    extra = {"steering": steering, "ignore_eos": False, "reading": reading} | form
    for choice in complete(n=2, temperature=1.0, seed=3, extra_body=extra, **options).choices:
        assert json.loads(choice.text)["town"] in ("Delft", "Gouda") and choice.finish_reason == "stop"
        assert receipt(choice)["positions_changed"] == receipt(choice)["positions_expected"]
        assert len(scores_of(choice)) == len(choice.logprobs.tokens)
    (said,) = ask(extra=extra, max_tokens=60, logit_bias=no_spaces).choices
    assert json.loads(said.message.content)["town"]


def test_options_of_vllm_change_texts(complete, tiny_model):
    plain = complete(max_tokens=24).choices[0]
    assert complete(max_tokens=24, frequency_penalty=2.0, presence_penalty=2.0).choices[0].text != plain.text
    assert complete(max_tokens=24, extra_body={"repetition_penalty": 1.9}).choices[0].text != plain.text
    (token,) = complete(max_tokens=1, extra_body={"return_token_ids": True}).choices[0].model_extra["token_ids"]
    banned = complete(max_tokens=1, logit_bias={str(token): -100}, extra_body={"return_token_ids": True})
    assert banned.choices[0].model_extra["token_ids"] != [token]
    ended = complete(max_tokens=24, extra_body={"stop_token_ids": [token]}).choices[0]
    assert (ended.finish_reason, ended.model_extra["stop_reason"]) == ("stop", token)
    allowed = complete(max_tokens=4, extra_body={"allowed_token_ids": [token], "return_token_ids": True})
    assert allowed.choices[0].model_extra["token_ids"] == [token] * 4
    assert complete(stop=[f"never {number}" for number in range(16)]).choices[0].finish_reason == "length"
    likeliest = complete(temperature=1.0, seed=1, extra_body={"top_k": 1}).choices[0]
    assert likeliest.text == complete().choices[0].text
    choice = {"structured_outputs": {"choice": ["yes", "no"]}, "ignore_eos": False}
    assert complete(extra_body=choice).choices[0].text in ("yes", "no")


def test_seeds_are_below_the_largest_that_vllm_takes(complete):
    """Its second model runner keeps them as int64, and its engine ends at a larger one."""
    answer = complete(n=3, seed=2**63 - 2, temperature=1.0)
    texts = [choice.text for choice in answer.choices]
    assert answer.model_extra["seed"] == 2**63 - 2
    assert texts[2] == complete(seed=0, temperature=1.0).choices[0].text


def test_an_answer_holds_no_more_log_probabilities_than_the_service_keeps(http, tiny_model):
    body = {"model": str(tiny_model), "prompt": [[5] * 200] * 128, "max_tokens": 1, "echo": True, "logprobs": 20}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 413
    assert "527625 log-probabilities" in answer.json()["error"]["message"]
