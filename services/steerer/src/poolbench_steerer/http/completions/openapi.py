"""The OpenAPI document of the routes under `/v1`, in the forms of the OpenAI API."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from poolbench.config import StrictModel
from poolbench.contracts.wire import END_OF_STREAM, EVENT_STREAM, JSON_TYPE
from poolbench.runtime.openapi import Responses, errors
from poolbench_steerer.http.answers import ReceiptAnswer

_MODELS = "#/components/schemas/"


class OpenAIErrorDetail(StrictModel):
    """An error as clients of the OpenAI API read it."""

    message: str
    type: str
    param: str | None = Field(description="the field that is wrong")
    code: str


class OpenAIErrorBody(StrictModel):
    """The body of every error under `/v1`."""

    error: OpenAIErrorDetail


class Logprobs(StrictModel):
    """Log-probabilities of the tokens of a choice."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(StrictModel):
    """One text; `steering_receipt` proves that it was steered."""

    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: str | None
    steering_receipt: ReceiptAnswer | None = None


class Usage(StrictModel):
    """Tokens of all prompts and choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionAnswer(StrictModel):
    """A completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    seed: int = Field(description="seed of the first choice")
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunk(StrictModel):
    """What a stream adds to a completion. The last one has the usage and no choices, if that was asked for."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    seed: int
    choices: list[CompletionChoice]
    usage: Usage | None = None


class ModelObject(StrictModel):
    """A model that requests can name."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str


class ModelList(StrictModel):
    """The configured model and the loaded one."""

    object: Literal["list"]
    data: list[ModelObject]


def openai_errors(*statuses: int, body: bool = True) -> Responses:
    """Return the error responses of a route under `/v1`: there a request that does not validate is a 400."""
    found = errors(*statuses, body=body, form=OpenAIErrorBody)
    return {status: response for status, response in found.items() if status != 422}


def _events(kind: type[BaseModel]) -> dict[str, Any]:
    """Return a stream of events that carry `kind` as JSON and end with an error or `[DONE]`."""
    schema = kind.model_json_schema(ref_template=f"{_MODELS}{{model}}")
    schema.pop("$defs")  # the same models as those of a whole answer
    content = {"anyOf": [schema, {"$ref": f"{_MODELS}{OpenAIErrorBody.__name__}"}]}
    data = [{"const": END_OF_STREAM}, {"contentMediaType": JSON_TYPE, "contentSchema": content}]
    event = {"type": "object", "properties": {"data": {"type": "string", "anyOf": data}}, "required": ["data"]}
    return {"itemSchema": event}


COMPLETION: Responses = {
    200: {"model": CompletionAnswer, "content": {EVENT_STREAM: _events(CompletionChunk)}},
    **openai_errors(403, 404),
}
