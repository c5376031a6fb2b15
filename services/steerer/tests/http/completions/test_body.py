"""What a client may send beside its messages."""

from typing import Any

import pytest
from pydantic import ValidationError

from poolbench_steerer.http.completions.body import ChatBody

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
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}}, "response_format"),
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
