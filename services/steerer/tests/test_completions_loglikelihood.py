"""Log-probabilities of prompts, asked as lm-evaluation-harness's ``local-completions`` asks, against Transformers."""

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from poolbench_steerer.tokens import tokens_of

pytestmark = pytest.mark.lane(name="engines")

QUESTIONS = [
    ("The river runs past", [" the old mill", " every loaf", " its tracks"]),
    ("Nobody saw the fox, but", [" its tracks crossed the field", " the boats"]),
    ("If", [" the wind turns, the boats will wait in the harbour until morning.", " x"]),
]


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def pairs(model_ref: Any) -> list[tuple[list[int], list[int]]]:
    """Context and continuation of every answer, as the harness splits them."""
    tokens = tokens_of(model_ref)
    made = []
    for context, answers in QUESTIONS:
        prefix = list(tokens.encode_plain(context))
        made += [(prefix, list(tokens.encode_plain(context + answer))[len(prefix) :]) for answer in answers]
    return made


def expected(reference: Any, context: Sequence[int], continuation: Sequence[int]) -> tuple[float, bool]:
    """Summed log-probability of a continuation, and whether it is the likeliest, as the harness's own backend."""
    ids = torch.tensor([*context, *continuation])
    with torch.inference_mode():
        logprobs = torch.log_softmax(reference(ids[None]).logits[0, :-1].double(), dim=-1)[len(context) - 1 :]
    target = torch.tensor(continuation)
    greedy = bool((logprobs.argmax(dim=-1) == target).all())
    return float(logprobs.gather(1, target[:, None]).sum()), greedy


def loglikelihoods(answer: dict[str, Any], context_lengths: Sequence[int]) -> list[tuple[float, bool]]:
    """What the harness reads of an answer: everything after the context but the generated token."""
    found = []
    for choice, start in zip(answer["choices"], context_lengths, strict=True):
        logprobs = choice["logprobs"]["token_logprobs"][start:-1]
        best = [max(step.values()) for step in choice["logprobs"]["top_logprobs"][start:-1]]
        found.append((sum(logprobs), logprobs == best))
    return found


def joined(lists: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


def test_multiple_choice_equals_transformers(http, tiny_model, reference, pairs):
    """A list of prompts of different lengths as token ids, and each alone; both far from exact rounding."""
    body = {"model": str(tiny_model), "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    prompts = [context + continuation for context, continuation in pairs]
    lengths = [len(context) for context, _ in pairs]
    found = loglikelihoods(http.post("/v1/completions", json=body | {"prompt": prompts}).json(), lengths)
    alone = [
        loglikelihoods(http.post("/v1/completions", json=body | {"prompt": [ids]}).json(), [length])[0]
        for ids, length in zip(prompts, lengths, strict=True)
    ]
    for each, single, (context, continuation) in zip(found, alone, pairs, strict=True):
        value, greedy = expected(reference, context, continuation)
        assert each == (pytest.approx(value, abs=1e-4), greedy)
        assert single == (pytest.approx(value, abs=1e-4), greedy)


def test_the_greedy_continuation_is_marked(http, tiny_model, reference, pairs):
    """What the model itself says next is the likeliest; ties in the last bit must not hide it."""
    prompt = pairs[0][0]
    ids = list(prompt)
    for _ in range(4):
        with torch.inference_mode():
            ids.append(int(reference(torch.tensor([ids])).logits[0, -1].argmax()))
    body = {"model": str(tiny_model), "prompt": [ids], "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0}
    ((value, greedy),) = loglikelihoods(http.post("/v1/completions", json=body).json(), [len(prompt)])
    assert greedy
    assert value == pytest.approx(expected(reference, prompt, ids[len(prompt) :])[0], abs=1e-4)


def test_nothing_is_generated_where_nothing_is_asked(http, tiny_model, model_ref, pairs):
    tokens = tokens_of(model_ref)
    ids = [list(tokens.encode(context)) for context, _ in QUESTIONS]
    body = {"model": str(tiny_model), "echo": True, "logprobs": 2, "max_tokens": 0, "n": 2, "temperature": 0.7}
    by_ids = http.post("/v1/completions", json=body | {"prompt": ids}).json()
    by_text = http.post("/v1/completions", json=body | {"prompt": [context for context, _ in QUESTIONS]}).json()
    assert by_ids["usage"] == by_text["usage"] == {
        "prompt_tokens": sum(map(len, ids)), "completion_tokens": 0, "total_tokens": sum(map(len, ids)),
    }  # fmt: skip
    for index, (first, second) in enumerate(zip(by_ids["choices"], by_text["choices"], strict=True)):
        assert first["text"] == second["text"] == QUESTIONS[index // 2][0]
        assert first["finish_reason"] == "length"
        assert first["logprobs"]["token_logprobs"][0] is first["logprobs"]["top_logprobs"][0] is None
        assert len(first["logprobs"]["tokens"]) == len(first["logprobs"]["text_offset"]) == len(ids[index // 2])
        assert first["logprobs"]["token_logprobs"][1:] == pytest.approx(second["logprobs"]["token_logprobs"][1:])
    assert http.post("/v1/completions", json=body | {"prompt": "The", "logprobs": None}).json()["choices"][0] == {
        "index": 0, "text": "The", "logprobs": None, "finish_reason": "length", "steering_receipt": None,
    }  # fmt: skip


def test_a_stream_begins_with_the_prompt(http, tiny_model):
    body = {"model": str(tiny_model), "prompt": "The river", "echo": True, "logprobs": 1, "max_tokens": 5, "seed": 1}
    whole = http.post("/v1/completions", json=body).json()["choices"][0]
    lines = http.post("/v1/completions", json=body | {"stream": True}).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line and "[DONE]" not in line]
    parts = [event["choices"][0] for event in events]
    assert "".join(part["text"] for part in parts) == whole["text"]
    for name in ("tokens", "text_offset"):
        assert joined(part["logprobs"][name] for part in parts) == whole["logprobs"][name]
    values = joined(part["logprobs"]["token_logprobs"] for part in parts)
    assert values[0] is None
    assert values[1:] == pytest.approx(whole["logprobs"]["token_logprobs"][1:], abs=1e-5)


def test_the_tokenizer_is_served_as_the_harness_asks_for_it(http, tiny_model, model_ref):
    tokens, model = tokens_of(model_ref), {"model": str(tiny_model)}
    info = http.get("/tokenizer_info", params=model).json()
    assert (info["bos_token"], info["eos_token"]) == ("<bos>", "<eos>") and "assistant:" in info["chat_template"]
    text = "<bos>Nobody saw the fox"
    ids = http.post("/tokenize", json={"prompt": text, "add_special_tokens": False} | model).json()["tokens"]
    assert ids == list(tokens.encode("Nobody saw the fox"))
    assert http.post("/detokenize", json={"tokens": ids} | model).json() == {"prompt": text}
    assert http.post("/detokenize", json={"tokens": [10**6]} | model).status_code == 400
