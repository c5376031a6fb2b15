"""Completions as the OpenAI API writes them: whole, in chunks, and errors."""

import json
import time
import uuid
from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field

from poolbench.config import StrictModel
from poolbench.contracts.wire import END_OF_STREAM, EVENT_STREAM, JSON_TYPE
from poolbench.http.openapi import Responses, errors
from poolbench_steerer.engine.requests import Step
from poolbench_steerer.http.answers import ReadingAnswer, ReceiptAnswer
from poolbench_steerer.http.completions.run import Part
from poolbench_steerer.http.probes import pooled_score
from poolbench_steerer.http.steering import ReadingBody, SteeringBody, receipt_body
from poolbench_steerer.tokens import Tokens

DONE = "data: [DONE]\n\n"


@dataclass
class Answer:
    """Build the response to one completion call."""

    model: str
    seed: int
    echoes: Sequence[str]  # prompt text to begin each choice with; empty strings for none
    num_prompt_tokens: int
    tokens: Tokens
    with_logprobs: bool  # whether choices have log-probabilities
    steering: SteeringBody | None = None  # how they are steered
    reading: ReadingBody | list[ReadingBody] | None = None  # what is read along
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))
    num_completion_tokens: int = 0
    _begun: set[int] = field(default_factory=set)
    _places: "dict[int, _Place]" = field(default_factory=dict)
    _scores: dict[tuple[int, int], list[float]] = field(default_factory=dict)  # by choice and number of the reading
    PREFIX: ClassVar = "cmpl"
    OBJECT: ClassVar = "text_completion"
    CHUNK: ClassVar = "text_completion"

    def choice(self, part: Part) -> dict[str, Any]:
        """Return a part as a choice of a chunk; the first of each choice begins with the echo."""
        self.num_completion_tokens += len(part.token_ids)
        echo = "" if part.index in self._begun else self.echoes[part.index]
        self._begun.add(part.index)
        choice: dict[str, Any] = {
            "index": part.index,
            "text": echo + part.text,
            "logprobs": self._logprobs(part) if self.with_logprobs else None,
            "finish_reason": part.finish_reason,
        }
        if part.finish_reason is not None:
            choice["steering_receipt"] = receipt_body(part.receipt, self.steering)
        if isinstance(self.reading, list):
            choice["reading"] = [self._scored(part, number, body) for number, body in enumerate(self.reading)]
        elif self.reading is not None:
            choice["reading"] = self._scored(part, 0, self.reading)
        return choice

    def whole(self, parts: Sequence[Part]) -> dict[str, Any]:
        """Return the answer of a call that is not streamed."""
        parts_by_index: dict[int, list[Part]] = {}
        for part in parts:
            parts_by_index.setdefault(part.index, []).append(part)
        joined = [Part.joined(of_choice) for _, of_choice in sorted(parts_by_index.items())]
        written = [self.written(self.choice(part)) for part in joined]
        return {**self._head(self.OBJECT), "choices": written, "usage": self.usage()}

    def chunk(self, part: Part) -> str:
        """Return a chunk of a stream."""
        begins = part.index not in self._begun
        return event({**self._head(self.CHUNK), "choices": [self.added(self.choice(part), begins)]})

    def usage_chunk(self) -> str:
        """Return the chunk with the usage, without choices."""
        return event({**self._head(self.CHUNK), "choices": [], "usage": self.usage()})

    def written(self, choice: dict[str, Any]) -> dict[str, Any]:
        """Return a whole choice as the answer has it."""
        return choice

    def added(self, choice: dict[str, Any], _begins: bool) -> dict[str, Any]:
        """Return a choice of a chunk as the answer has it; the first one begins it."""
        return choice

    def usage(self) -> dict[str, int]:
        """Return tokens of all prompts and choices."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_completion_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_completion_tokens,
        }

    def _head(self, kind: str) -> dict[str, Any]:
        head = {"id": f"{self.PREFIX}-{self.id}", "object": kind, "created": self.created, "model": self.model}
        return {**head, "seed": self.seed}

    def _logprobs(self, part: Part) -> dict[str, Any]:
        """Return log-probabilities by token; the first token of a prompt has none."""
        token_ids = part.prompt_ids + part.token_ids
        steps: tuple[Step | None, ...] = part.prompt_logprobs + part.logprobs
        names = [self.tokens.decode_one(token) for token in token_ids]
        place = self._places.setdefault(part.index, _Place())
        return {
            "tokens": names,
            "token_logprobs": [step and step[token] for token, step in zip(token_ids, steps, strict=True)],
            "top_logprobs": [step and self._by_name(step) for step in steps],
            "text_offset": [place.before(self.tokens.bytes_of(token)) for token in token_ids],
        }

    def _scored(self, part: Part, number: int, body: ReadingBody) -> dict[str, Any]:
        """Return the scores of a part's tokens by one of the readings; the last part says what was read."""
        scale, offset, probe = body.log_odds or (1.0, 0.0, None)
        of_prompt = [values and scale * values[number] + offset for values in part.prompt_scores]
        scores = [scale * values[number] + offset for values in part.scores]
        of_choice = self._scores.setdefault((part.index, number), [])
        of_choice += scores
        answer: dict[str, Any] = {"scores": [*of_prompt, *scores]}
        if part.finish_reason is not None:
            answer |= {"layer": body.at, "direction": body.named and body.named.facts()}
            if probe is not None:
                value, reason = pooled_score(probe["strategy"], of_choice, offset)
                answer |= {"probe": probe, "pooled": {"value": value, "reason": reason}}
        return answer

    def _by_name(self, step: Step) -> dict[str, float]:
        """Return log-probabilities by text; of tokens with the same text the likeliest."""
        ascending = sorted(step.items(), key=lambda entry: entry[1])
        return {self.tokens.decode_one(token): value for token, value in ascending}


class ChatAnswer(Answer):
    """Build the response to one chat call."""

    PREFIX: ClassVar = "chatcmpl"
    OBJECT: ClassVar = "chat.completion"
    CHUNK: ClassVar = "chat.completion.chunk"

    def written(self, choice: dict[str, Any]) -> dict[str, Any]:
        """Return a whole choice, with a message in place of the text."""
        message = {"role": "assistant", "content": choice.pop("text")}
        return {**choice, "message": message}

    def added(self, choice: dict[str, Any], begins: bool) -> dict[str, Any]:
        """Return a choice of a chunk, with what it adds to the message in place of the text."""
        delta = ({"role": "assistant"} if begins else {}) | {"content": choice.pop("text")}
        return {**choice, "delta": delta}

    def _logprobs(self, part: Part) -> dict[str, Any]:
        content = []
        for token, step in zip(part.token_ids, part.logprobs, strict=True):
            likeliest = sorted(step.items(), key=lambda entry: -entry[1])
            content.append({**self._token(token, step[token]), "top_logprobs": [self._token(*e) for e in likeliest]})
        return {"content": content}

    def _token(self, token: int, value: float) -> dict[str, Any]:
        name = self.tokens.decode_one(token)
        return {"token": name, "logprob": value, "bytes": list(self.tokens.bytes_of(token))}


class _Place:
    """Where the next token of a text begins, in characters; tokens may hold parts of one."""

    def __init__(self) -> None:
        self._characters = getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def before(self, token: bytes) -> int:
        """Return where a token begins, and go on behind it."""
        begins = self._offset
        self._offset += len(self._characters.decode(token))
        return begins


def event(body: dict[str, Any]) -> str:
    """Return a server-sent event."""
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


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
    """One text; `steering_receipt` proves that it was steered, `reading` has what was read along."""

    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: str | None
    steering_receipt: ReceiptAnswer | None = None
    reading: ReadingAnswer | list[ReadingAnswer] | None = None


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


class CompletionChunk(CompletionAnswer):
    """What a stream adds to a completion. The last one has the usage and no choices, if that was asked for."""

    usage: Usage | None = None  # type: ignore[assignment]


class TokenLogprob(StrictModel):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TokenLogprob):
    """A token of a message, and the likeliest at its place."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(StrictModel):
    """Log-probabilities of the tokens of a message."""

    content: list[ChatTokenLogprob]


class ChatMessage(StrictModel):
    """The answer of the model."""

    role: Literal["assistant"]
    content: str


class ChatDelta(StrictModel):
    """What a chunk adds to a message; the role stands in the first."""

    role: Literal["assistant"] | None = None
    content: str


class _ChatPart(StrictModel):
    index: int
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    steering_receipt: ReceiptAnswer | None = None
    reading: ReadingAnswer | list[ReadingAnswer] | None = None


class ChatChoice(_ChatPart):
    """One message; `steering_receipt` proves that it was steered, `reading` has what was read along."""

    message: ChatMessage


class ChatChunkChoice(_ChatPart):
    """What a chunk adds to one message."""

    delta: ChatDelta


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


def openai_errors(*statuses: int, body: bool = True) -> Responses:
    """Return the error responses of a route under `/v1`: there a request that does not validate is a 400."""
    response_by_status = errors(*statuses, body=body, form=OpenAIErrorBody)
    return {status: response for status, response in response_by_status.items() if status != 422}


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
