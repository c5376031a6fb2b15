"""Completion requests and texts without an engine."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from poolbench.errors import TooLargeError
from poolbench.http.error_form import openai_error
from poolbench_steerer.engine import Piece
from poolbench_steerer.errors import StreamBrokenError
from poolbench_steerer.http.completions.answer import Answer
from poolbench_steerer.http.completions.body import CompletionBody, NeutralOptions
from poolbench_steerer.http.completions.run import Choice, Part, TextStream, _Writer, check_logprobs, plan_choices


def bytes_of(text: str) -> list[int]:
    return list(text.encode())


def decode(token_ids: Sequence[int]) -> str:
    """A byte-level tokenizer: every byte is a token."""
    return bytes(token_ids).decode("utf-8", errors="replace")


def released(text: str, stops: Sequence[str] = ()) -> list[str]:
    """What is released after every token, then at the end."""
    stream, seen = TextStream(decode, stops), []
    for token in bytes_of(text):
        stream.push([token])
        seen.append(stream.text)
    stream.finish()
    return [*seen, stream.text]


def test_every_prefix_is_final_and_the_end_is_the_text():
    text = "Ünïcode: 🦊 and more text than the context of six tokens"
    seen = released(text)
    assert seen[-1] == text
    assert all(text.startswith(part) and "�" not in part for part in seen)
    stream = TextStream(decode)
    stream.push([0x61, 0xF0, 0x9F])
    assert stream.text == "a"
    stream.finish()
    assert stream.text == "a�"


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one two three", ["two"], "one "),
        ("one two three", ["four"], "one two three"),
        ("aab", ["ab"], "a"),
        ("abcabd", ["abd"], "abc"),
        ("x\n\ny", ["\n\n", "x\n\nz"], "x"),
        ("one tw", ["two"], "one tw"),
        ("a fox 🦊 ran", ["🦊"], "a fox "),
    ],
)
def test_a_stop_string_ends_the_text_and_never_shows(text, stops, expected):
    seen = released(text, stops)
    assert seen[-1] == expected
    assert all(expected.startswith(part) for part in seen)


def writer(choice: Choice, parts: list[Part], stops: Sequence[str] = ()) -> _Writer:
    return _Writer(choice, TextStream(decode, stops), parts.append)


def test_a_second_engine_goes_on_where_the_first_died_or_breaks_the_stream():
    choice, parts = Choice(0, (1,), 0), []
    first = writer(choice, parts)
    for token in bytes_of("The riv"):
        first.take(Piece((token,), None, None))
    second = writer(choice, parts)
    second.take(Piece(tuple(bytes_of("The ri")), None, None))
    assert second.take(Piece(tuple(bytes_of("ver")), None, "length")) is False
    second.finish(None)
    assert "".join(part.text for part in parts) == "The river"
    assert [token for part in parts for token in part.token_ids] == bytes_of("The river")
    assert (parts[-1].finish_reason, choice.done) == ("length", True)
    choice, parts = Choice(3, (1,), 0), []
    writer(choice, parts).take(Piece(tuple(bytes_of("The riv")), None, None))
    with pytest.raises(StreamBrokenError, match="after 7 tokens of choice 3"):
        writer(choice, parts).take(Piece(tuple(bytes_of("The sea")), None, None))
    assert "".join(part.text for part in parts) == "The riv"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": [5, True]}, "prompt.ids.1\n.*valid integer"),
        ({"prompt": [[5], [2**70]]}, "less than 2147483648"),
        ({"colour": 1}, "Extra inputs"),
        ({"suffix": "x"}, "suffix\n.*not supported"),
        ({"top_k": 5}, "top_k\n.*send -1 or 0"),
        ({"min_tokens": False}, "min_tokens\n.*not supported"),
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


def test_an_answer_holds_no_more_log_probabilities_than_the_service_keeps():
    body = CompletionBody.model_validate({"prompt": ["a"] * 64, "max_tokens": 1, "echo": True, "logprobs": 1})
    check_logprobs(body, [(5,) * 2048] * 64)
    wide = body.model_copy(update={"logprobs": 20})
    with pytest.raises(TooLargeError, match=r"2753856 log-probabilities .* at most 524288"):
        check_logprobs(wide, [(5,) * 2048] * 64)


def test_choices_stand_in_the_order_of_the_api_with_seeds_below_the_largest():
    body = CompletionBody(prompt=["a", "b"], n=2)
    choices = plan_choices(body, [(1,), (2,)], seed=10)
    assert [(c.index, c.prompt_ids, c.seed) for c in choices] == [
        (0, (1,), 10), (1, (1,), 11), (2, (2,), 10), (3, (2,), 11),
    ]  # fmt: skip
    # vLLM's second model runner keeps them as int64, and its engine ends at a larger one.
    body = CompletionBody(prompt="x", n=3, seed=2**63 - 2)
    assert [choice.seed for choice in plan_choices(body, [(1,)], body.seed)] == [2**63 - 2, 2**63 - 1, 0]


class Letters:
    """A tokenizer whose tokens are letters."""

    def decode_one(self, token_id: int) -> str:
        return chr(token_id)

    def bytes_of(self, token_id: int) -> bytes:
        return chr(token_id).encode()


def test_parts_add_up_to_the_whole_answer():
    parts = [
        Part(1, "b", (98,), ({98: -0.5, 99: -1.0},)),
        Part(0, "a", (97,), ({97: -0.1},), "length"),
        Part(1, "cc", (99, 99), ({99: -0.2}, {99: -0.3}), "stop"),
    ]
    whole = Answer("m", 7, ["", "ECHO "], 5, Letters(), True).whole(parts)
    assert [choice["text"] for choice in whole["choices"]] == ["a", "ECHO bcc"]
    assert [choice["finish_reason"] for choice in whole["choices"]] == ["length", "stop"]
    assert whole["choices"][1]["logprobs"] == {
        "tokens": ["b", "c", "c"],
        "token_logprobs": [-0.5, -0.2, -0.3],
        "top_logprobs": [{"b": -0.5, "c": -1.0}, {"c": -0.2}, {"c": -0.3}],
        "text_offset": [0, 1, 2],
    }
    assert whole["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
    assert (whole["object"], whole["model"], whole["seed"]) == ("text_completion", "m", 7)


def test_chunks_are_events():
    answer = Answer("m", 7, ["E"], 5, Letters(), False)
    chunk = answer.chunk(Part(0, "a\n", (97,)))
    assert chunk.startswith("data: {")
    assert chunk.endswith("}\n\n")
    (choice,) = json.loads(chunk[6:])["choices"]
    assert choice == {"index": 0, "text": "Ea\n", "logprobs": None, "finish_reason": None}
    last = json.loads(answer.chunk(Part(0, "b", (98,), (), "length"))[6:])["choices"][0]
    assert (last["text"], last["steering_receipt"]) == ("b", None)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (429, "rate_limit_error"), (401, "authentication_error"), (503, "server_error")],
)
def test_errors_have_the_shape_of_the_api(status, kind):
    assert openai_error(status, "c", "m") == {"error": {"message": "m", "type": kind, "param": None, "code": "c"}}
