"""What the OpenAI API answers, for the documentation: completions, chats, their chunks, and models."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from poolbench.config import StrictModel
from poolbench.contracts.wire import END_OF_STREAM, EVENT_STREAM, JSON_TYPE
from poolbench.http.openai_routes import OpenAIErrorBody, openai_errors
from poolbench.http.openapi import Responses
from poolbench_steerer.http.answers import PoolingAnswer, ReadingAnswer, ReceiptAnswer

_MODELS = "#/components/schemas/"


class OfVllm(BaseModel):
    """A part that vLLM writes, as the OpenAI API has it; releases of vLLM may add fields."""

    model_config = ConfigDict(extra="allow")


class Choice(OfVllm):
    """What choices of completions and chats share.

    `steering_receipt` proves that a text was steered, `reading` has what was read along.
    """

    index: int
    finish_reason: str | None
    logprobs: dict[str, Any] | None
    steering_receipt: ReceiptAnswer | None = None
    reading: ReadingAnswer | PoolingAnswer | list[ReadingAnswer | PoolingAnswer] | None = None


class CompletionChoice(Choice):
    """One text."""

    text: str


class ChatChoice(Choice):
    """One message."""

    message: dict[str, Any]


class ChatChunkChoice(Choice):
    """What a chunk adds to one message; the role stands in the first."""

    delta: dict[str, Any]


class Usage(OfVllm):
    """Tokens of all prompts and choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionAnswer(OfVllm):
    """A completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    seed: int = Field(description="seed of the first choice")
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunk(CompletionAnswer):
    """What a stream adds to a completion. The last one has the usage and no choices, if that was asked for."""

    usage: Usage | None = None  # type: ignore[assignment]


class ChatCompletion(CompletionAnswer):
    """The answer to a chat."""

    object: Literal["chat.completion"]  # type: ignore[assignment]
    choices: list[ChatChoice]  # type: ignore[assignment]


class ChatChunk(CompletionChunk):
    """What a stream adds to the answer to a chat. The last one has the usage and no choices, if that was asked for."""

    object: Literal["chat.completion.chunk"]  # type: ignore[assignment]
    choices: list[ChatChunkChoice]  # type: ignore[assignment]


class ModelObject(StrictModel):
    """A model that requests can name."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str


class ModelList(StrictModel):
    """The configured model, the loaded one, and those that are steered by name."""

    object: Literal["list"]
    data: list[ModelObject]


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """Return a schema with its definitions in place of the references to them."""
    if isinstance(node, list):
        return [_inlined(child, definitions) for child in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(value, definitions) for name, value in node.items()}


def responses(whole: type[BaseModel], chunk: type[BaseModel]) -> Responses:
    """Return the responses of a route that answers at once or in chunks."""
    schema = chunk.model_json_schema()
    schema = _inlined(schema, schema.pop("$defs"))  # FastAPI lists only the models of whole answers
    content = {"anyOf": [schema, {"$ref": f"{_MODELS}{OpenAIErrorBody.__name__}"}]}
    data = [{"const": END_OF_STREAM}, {"contentMediaType": JSON_TYPE, "contentSchema": content}]
    event = {"type": "object", "properties": {"data": {"type": "string", "anyOf": data}}, "required": ["data"]}
    answer: Responses = {200: {"model": whole, "content": {EVENT_STREAM: {"itemSchema": event}}}}
    return {**answer, **openai_errors(403, 404)}
