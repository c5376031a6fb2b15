"""Chats, asked by the OpenAI client itself: the model's own template, and all that completions have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from transformers import AutoTokenizer

TALK = [
    {"role": "user", "content": "Where does the river run?"},
    {"role": "assistant", "content": "Past the mill."},
    {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "then?"}]},
]
SAID = [TALK[0], TALK[1], {"role": "user", "content": "And then?"}]
OPTIONS: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0}


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="secret", max_retries=0, timeout=300) as client:
        yield client


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
    text = tokenizer.apply_chat_template(SAID, tokenize=False, add_generation_prompt=True)
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


def test_a_stream_says_what_the_whole_answer_says(ask):
    options = {"n": 2, "temperature": 0.8, "seed": 5, "logprobs": True}
    whole = ask(**options)
    texts, logprobs, roles, usage = ["", ""], [[], []], ["", ""], None
    for chunk in ask(stream=True, stream_options={"include_usage": True}, **options):
        assert chunk.object == "chat.completion.chunk"
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content
            roles[choice.index] += choice.delta.role or ""
            logprobs[choice.index] += [token.logprob for token in choice.logprobs.content]
    assert texts == [choice.message.content for choice in whole.choices] and texts[0] != texts[1]
    assert roles == ["assistant"] * 2 and usage == whole.usage
    for index, choice in enumerate(whole.choices):
        assert logprobs[index] == pytest.approx([token.logprob for token in choice.logprobs.content], abs=1e-5)


def test_a_steered_chat_has_its_receipt(ask, unit_vectors: np.ndarray):
    steering = {"vector": unit_vectors[0].tolist(), "layer": 2, "alpha": 60.0}
    steered = ask(extra={"steering": steering}).choices[0]
    assert steered.message.content != ask().choices[0].message.content
    proof = steered.model_extra["steering_receipt"]
    assert proof["positions_changed"] == proof["positions_expected"] > 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"messages": [{"role": "system", "content": "Be brief."}]}, "refuses these messages: only users and assist"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "judge", "content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]}, "messages.0"),
        ({"max_tokens": 1000}, "window"),
        ({"messages": [{"role": "user", "content": "loaf " * 400}]}, "window"),
        ({"top_logprobs": 2}, "top_logprobs is for logprobs: true"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ],
)
def test_what_cannot_be_answered_is_a_400_that_says_why(ask, change, said):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(**change)
    assert said in caught.value.message


def test_a_model_without_a_template_says_what_to_do(tiny_model, model_ref):
    from poolbench.errors import InputError
    from poolbench_steerer.tokens import Tokens

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = None
    with pytest.raises(InputError, match=r"no chat template; send a prompt to /v1/completions"):
        Tokens(tokenizer).encode_chat(SAID)
    tokenizer.chat_template = "{{ nothing.at.all }}"
    with pytest.raises(InputError, match="refuses these messages: 'nothing' is undefined"):
        Tokens(tokenizer).encode_chat(SAID)
    tokenizer.chat_template = "{# #}"
    with pytest.raises(InputError, match="empty prompt"):
        Tokens(tokenizer).encode_chat(SAID)
