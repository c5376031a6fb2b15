"""What a client may send, and what of it vLLM gets."""

from typing import Any

import pytest
from pydantic import ValidationError

from poolbench.http.error_form import openai_error
from poolbench_steerer.completions.body import ChatBody, CompletionBody, NeutralOptions

CALLED = {"name": "f", "arguments": "{}"}
ASKED = {"role": "user", "content": "What is a tide?"}
SAID = {"role": "assistant", "content": "Water."}
# An answer as openai.ChatCompletionMessage.model_dump() gives it, as api.openai.com writes it, and as LiteLLM keeps it.
DUMPED = SAID | {"refusal": None, "annotations": None, "audio": None, "function_call": None, "tool_calls": None}
SENT = SAID | {"refusal": None, "annotations": []}
LITELLM = SAID | {"tool_calls": None, "function_call": None, "provider_specific_fields": {"refusal": None}}


@pytest.mark.parametrize("answer", [SAID, DUMPED, SENT, LITELLM, SAID | {"tool_calls": [], "name": None}])
def test_an_answer_is_taken_back_in_the_form_that_a_client_keeps_it_in(answer: dict[str, Any]):
    body = ChatBody.model_validate({"messages": [ASKED, answer, ASKED]})
    assert body.values()["messages"] == [ASKED, SAID, ASKED]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"store": False},
        {"metadata": None},
        {"metadata": {"run": "a"}},
        {"service_tier": "auto"},
        {"modalities": ["text"]},
        {"prompt_cache_key": "k", "safety_identifier": "s", "user": "u"},
        {"verbosity": "medium"},
        {"tools": [], "tool_choice": "auto"},
        {"functions": [], "function_call": "auto"},
        {"logit_bias": {}, "top_k": 0, "repetition_penalty": 1.0, "frequency_penalty": 0},
        {"stop": [], "logprobs": None, "top_logprobs": None},
        {"add_generation_prompt": True, "chat_template_kwargs": {}, "add_special_tokens": False},
        {"an_option_of_tomorrow": None},
    ],
)
def test_options_that_change_nothing_are_taken(options: dict[str, Any]):
    values = [ChatBody.model_validate({"messages": [ASKED], "max_tokens": 8} | one).values() for one in (options, {})]
    assert values[0].pop("stop", []) == []
    assert values[0] == values[1]
    assert (values[0]["messages"], values[0]["max_completion_tokens"]) == ([ASKED], 8)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"store": True}, "store"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"verbosity": "low"}, "verbosity"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"echo": True}, "echo"),
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
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function"}]}, "function"),
        (ASKED | {"tool_calls": [{"id": "a", "type": "function", "function": CALLED}]}, "only the assistant"),
        ({"role": "assistant", "content": None, "function_call": {"name": "f"}}, "function_call"),
        ({"role": "assistant", "content": None}, "content"),
        (SAID | {"refusal": "I cannot say."}, "refusal"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}, "image_url"),
    ],
)
def test_messages_that_hold_more_than_text_are_refused_with_the_reason(message: dict[str, Any], reason: str):
    with pytest.raises(ValidationError) as refused:
        ChatBody.model_validate({"messages": [ASKED, message]})
    assert reason in str(refused.value)


WEATHER = {"type": "object", "properties": {"town": {"type": "string"}, "pattern": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
CALL = {"id": "a", "type": "function", "function": CALLED}


def test_tools_their_calls_and_their_results_go_to_vllm():
    messages = [
        ASKED,
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
        {"role": "tool", "tool_call_id": "a", "content": "42"},
    ]
    asked = {"messages": messages, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    values = ChatBody.model_validate(asked).values()
    assert values["messages"] == [ASKED, {"role": "assistant", "tool_calls": [CALL]}, messages[2]]
    assert (values["tools"], values["tool_choice"], values["parallel_tool_calls"]) == ([TOOL], "required", False)


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": WEATHER, "strict": True}}},
        {"structured_outputs": {"json": WEATHER}},
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_forms_of_texts_go_to_vllm(form: dict[str, Any]):
    values = ChatBody.model_validate({"messages": [ASKED]} | form).values()
    assert {name: values[name] for name in form} == form


def nested(depth: int) -> dict[str, Any]:
    return {"type": "string"} if depth == 0 else {"type": "array", "items": nested(depth - 1)}


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"structured_outputs": {"regex": "(a+)+"}}, "Extra inputs"),
        ({"structured_outputs": {"grammar": "root ::= root"}}, "Extra inputs"),
        ({"structured_outputs": {"json": {}}, "allowed_token_ids": [0]}, "beside a form of the answer"),
        ({"structured_outputs": {"json": {}, "choice": ["a"]}}, "exactly one"),
        ({"structured_outputs": {"choice": ["a"] * 257}}, "at most 256"),
        ({"structured_outputs": {"json": {"type": "string", "pattern": "(a{1,9}){1,9}"}}}, "pattern is not supported"),
        ({"structured_outputs": {"json": {"patternProperties": {"a+": {}}}}}, "patternProperties is not supported"),
        ({"structured_outputs": {"json": nested(24)}}, "nested too deeply"),
        ({"structured_outputs": {"json": {"enum": ["a" * 2**14]}}}, "are too long"),
        ({"structured_outputs": {"json": {"const": "\ud800"}}}, "surrogates not allowed"),
        ({"response_format": {"type": "structural_tag"}}, "response_format"),
        ({"tools": [TOOL] * 65}, "at most 64"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"pattern": "a"}}}]}, "pattern"),
        ({"tool_choice": "required"}, "there are none"),
    ],
)
def test_forms_that_would_keep_a_compiler_busy_are_refused(form: dict[str, Any], reason: str):
    with pytest.raises(ValidationError) as refused:
        ChatBody.model_validate({"messages": [ASKED]} | form)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": [5, True]}, "prompt.ids.1\n.*valid integer"),
        ({"prompt": [[5], [2**70]]}, "less than 2147483648"),
        ({"colour": 1}, "Extra inputs"),
        ({"suffix": "x"}, "suffix\n.*not supported"),
        ({"use_beam_search": True}, "use_beam_search\n.*send False"),
        ({"priority": False}, "priority\n.*not supported"),
        ({"top_k": 2**31}, "top_k"),
        ({"min_tokens": False}, "min_tokens\n.*valid integer"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"presence_penalty": float("nan")}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"bad_words": ["a"] * 17}, "bad_words"),
        ({"vllm_xargs": {"steering": "a@1"}}, "vllm_xargs\n.*Extra inputs"),
        ({"cache_salt": "a"}, "cache_salt\n.*Extra inputs"),
        ({"best_of": 3}, "best_of 3"),
        ({"stream_options": {"include_usage": True}}, "stream: true only"),
        ({"n": 513, "prompt": ["a", "b"]}, "exceed 1024 choices"),
        ({"max_tokens": 0}, "without echo"),
        ({"max_tokens": 2**19, "n": 3}, "1572864, at most 1048576"),
    ],
)
def test_what_a_request_may_not_hold(change: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        CompletionBody.model_validate({"prompt": "a"} | change)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), ("", [""]), (["a", "b"], ["a", "b"]), ([5, 6], [[5, 6]]), ([[5], [6, 7]], [[5], [6, 7]])],
)
def test_the_four_forms_of_a_prompt(prompt, prompts):
    body = CompletionBody.model_validate({"prompt": prompt, "stop": None, "user": "me"})
    assert body.prompts == prompts


def test_every_option_is_taken_with_its_neutral_values_and_null():
    """As ``vllm bench serve``, lm-evaluation-harness and the OpenAI client send them; floats stand for integers."""
    for name, field in NeutralOptions.model_fields.items():
        (only,) = field.metadata
        for value in (*only.values, None, *(float(v) for v in only.values if type(v) is int)):
            CompletionBody.model_validate({"prompt": "a", name: value})
    CompletionBody.model_validate({"prompt": "a", "best_of": 1, "n": 1, "max_tokens": None, "stream_options": None})


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (429, "rate_limit_error"), (401, "authentication_error"), (503, "server_error")],
)
def test_errors_have_the_shape_of_the_api(status, kind):
    assert openai_error(status, "c", "m") == {"error": {"message": "m", "type": kind, "param": None, "code": "c"}}
