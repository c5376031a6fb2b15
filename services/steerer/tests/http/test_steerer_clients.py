"""What clients of the OpenAI API send beside messages: answered if it says nothing, else refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from poolbench_steerer.http.completions.answer import ChatAnswer
from poolbench_steerer.http.completions.body import ChatBody, CompletionBody
from poolbench_steerer.http.completions.run import Part
from poolbench_steerer.tokens import Tokens

ASKED = {"role": "user", "content": "What is a tide?"}
SAID = {"role": "assistant", "content": "Water."}
# An answer as openai.ChatCompletionMessage.model_dump() gives it, as api.openai.com writes it, and as LiteLLM keeps it.
DUMPED = SAID | {"refusal": None, "annotations": None, "audio": None, "function_call": None, "tool_calls": None}
SENT = SAID | {"refusal": None, "annotations": []}
LITELLM = SAID | {"tool_calls": None, "function_call": None, "provider_specific_fields": {"refusal": None}}


@pytest.mark.parametrize("answer", [SAID, DUMPED, SENT, LITELLM, SAID | {"tool_calls": [], "name": None}])
def test_an_answer_is_taken_back_in_the_form_that_a_client_keeps_it_in(answer: dict[str, Any]):
    body = ChatBody.model_validate({"messages": [ASKED, answer, ASKED]})
    assert body.conversation == [ASKED, SAID, ASKED]


@pytest.mark.parametrize(
    "options",
    [
        {"store": False},
        {"metadata": None},
        {"metadata": {"run": "a"}},
        {"service_tier": "auto"},
        {"modalities": ["text"]},
        {"prompt_cache_key": "k", "safety_identifier": "s", "user": "u"},
        {"verbosity": "medium", "reasoning_effort": "none"},
        {"tools": [], "tool_choice": "auto"},
        {"functions": [], "function_call": "auto"},
        {"response_format": {"type": "text"}, "logit_bias": {}},
        {"stop": [], "logprobs": None, "top_logprobs": None},
        {"add_generation_prompt": True, "chat_template_kwargs": {}, "add_special_tokens": False},
        {"an_option_of_tomorrow": None},
    ],
)
def test_options_that_change_nothing_are_taken(options: dict[str, Any]):
    body = ChatBody.model_validate({"messages": [ASKED], "max_tokens": 8} | options)
    assert body.conversation == [ASKED]
    completion = body.completion([1, 2])
    assert (completion.prompts, completion.max_tokens, completion.stops) == ([[1, 2]], 8, ())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"store": True}, "store"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"verbosity": "low"}, "verbosity"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        ({"add_special_tokens": True}, "add_special_tokens"),
        ({"an_option_of_tomorrow": 1}, "an_option_of_tomorrow"),
    ],
)
def test_options_that_would_change_something_are_refused_by_name(options: dict[str, Any], named: str):
    with pytest.raises(ValidationError) as refused:
        ChatBody.model_validate({"messages": [ASKED]} | options)
    assert [issue["loc"] for issue in refused.value.errors()] == [(named,)]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "tool", "tool_call_id": "a", "content": "42"}, "calls of tools"),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function"}]}, "calls of tools"),
        ({"role": "assistant", "content": None, "function_call": {"name": "f"}}, "calls of tools"),
        ({"role": "assistant", "content": None}, "content"),
        (SAID | {"refusal": "I cannot say."}, "refusal"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}, "image_url"),
    ],
)
def test_messages_that_hold_more_than_text_are_refused_with_the_reason(message: dict[str, Any], reason: str):
    with pytest.raises(ValidationError) as refused:
        ChatBody.model_validate({"messages": [ASKED, message]})
    assert reason in str(refused.value)


def test_null_is_no_prompt():
    with pytest.raises(ValidationError, match="prompt"):
        CompletionBody.model_validate({"prompt": None})


def byte_level() -> tuple[Tokens, list[int]]:
    tokenizer = Tokenizer(models.BPE(vocab={**_letters(), "Ġa": 256}, merges=[("Ġ", "a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _tokens(tokenizer)


def sentencepiece() -> tuple[Tokens, list[int]]:
    pieces = {"<unk>": 0, "▁": 1, "▁a": 2, "a": 300}
    pieces |= {f"<0x{byte:02X}>": byte + 3 for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=pieces, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _tokens(tokenizer)


def _letters() -> dict[str, int]:
    return {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def _tokens(tokenizer: Tokenizer) -> tuple[Tokens, list[int]]:
    tokens = Tokens(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    return tokens, list(tokens.encode_plain(TEXT))


TEXT = " a \N{GRINNING FACE}é a"


@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
def test_bytes_of_tokens_make_the_text_also_where_a_token_is_part_of_a_character(kind: Any):
    tokens, ids = kind()
    assert any("\ufffd" in tokens.decode([token]) for token in ids)
    parts = Part(0, TEXT, tuple(ids), tuple({token: -1.0} for token in ids), "stop")
    (choice,) = ChatAnswer("m", 1, [""], 1, tokens, True).whole([parts])["choices"]
    content = choice["logprobs"]["content"]
    assert b"".join(bytes(token["bytes"]) for token in content).decode().strip() == TEXT.strip()
    partial = [token for token in content if token["token"].startswith("token_id:")]
    assert len(partial) == 4 + 2 and all(len(token["bytes"]) == 1 for token in partial)
