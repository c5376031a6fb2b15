"""What a completion request may hold."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, GetJsonSchemaHandler, Tag, field_validator, model_validator
from pydantic_core import CoreSchema

from poolbench_steerer.http.bounds import (
    MAX_NEW_TOKENS,
    MAX_PROMPT_TOKENS,
    MAX_TEXTS,
    Name,
    RequestBody,
    Seed,
    Stop,
    Temperature,
    Text,
    Texts,
    TokenId,
    TopP,
    check_new_tokens,
    check_total_chars,
)
from poolbench_steerer.http.completions.neutral import NeutralOptions, Only
from poolbench_steerer.http.steering import SteeringBody

MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_TOTAL_TOKENS = 2**20

TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_PROMPT_TOKENS, fail_fast=True)]


#: Forms of a prompt or stop, which the errors of pydantic name.
FORMS = ("text", "texts", "ids", "id_lists")


def _form(prompt: Any) -> str:
    """Which of its four forms a prompt has. The first item decides, so that the error names a wrong one correctly."""
    if not isinstance(prompt, list):
        return "text"
    if prompt and isinstance(prompt[0], (list, str)):
        return "texts" if isinstance(prompt[0], str) else "id_lists"
    return "ids"


Prompt = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[Texts, Tag("texts")]
    | Annotated[TokenIds, Tag("ids")]
    | Annotated[Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)], Tag("id_lists")],
    Discriminator(_form),
]
Stops = Annotated[
    Annotated[Stop, Tag("text")]
    | Annotated[Annotated[list[Stop], Field(max_length=MAX_STOPS, fail_fast=True)], Tag("texts")],
    Discriminator(lambda stop: "texts" if isinstance(stop, list) else "text"),
]


def _nullable(described: dict[str, Any]) -> dict[str, Any]:
    null = {"type": "null"}
    if None in described.get("enum", ()) or null in described.get("anyOf", ()):
        return described
    return {"anyOf": [described, null]}


class StreamOptions(RequestBody):
    """What a stream ends with."""

    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: Annotated[Any, Only(False)] = False


class CompletionBody(NeutralOptions, RequestBody):
    """A completion request; defaults are those of the OpenAI API, and null stands for the default."""

    prompt: Prompt
    model: Name | None = None
    max_tokens: int = Field(default=16, ge=0, le=MAX_NEW_TOKENS, description="0 is for echo alone")
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    n: int = Field(default=1, ge=1, le=MAX_TEXTS)
    best_of: int | None = Field(default=None, ge=1, le=MAX_TEXTS, description="n, if anything")
    seed: Seed | None = None
    stop: Stops | None = None
    echo: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS, description="with echo, of the prompt too")
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: Name | None = Field(default=None, description="for the caller's own records")
    ignore_eos: bool = False
    steering: SteeringBody | None = None

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        described = handler(schema)
        properties = handler.resolve_ref_schema(described)["properties"]
        for name in properties.keys() - {"prompt"}:
            properties[name] = _nullable(properties[name])
        return described

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_default(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        optional = cls.model_fields.keys() - {"prompt"}
        return {name: field for name, field in value.items() if field is not None or name not in optional}

    @field_validator("prompt")
    @classmethod
    def _prompts_together(cls, prompt: Any) -> Any:
        parts = prompt if isinstance(prompt, list) else [prompt]
        if isinstance(parts[0], str):
            check_total_chars(parts)
        elif isinstance(parts[0], list) and (total := sum(map(len, parts))) > MAX_TOTAL_TOKENS:
            raise ValueError(f"the prompts have {total} tokens together, at most {MAX_TOTAL_TOKENS} are taken")
        return prompt

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.best_of not in (None, self.n):
            raise ValueError(f"best_of {self.best_of} is not supported; it must equal n ({self.n})")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens 0 without echo asks for nothing; send echo: true or max_tokens from 1 on")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for stream: true only")
        num_choices = len(self.prompts) * self.n
        if num_choices > MAX_TEXTS:
            raise ValueError(f"{len(self.prompts)} prompts with n {self.n} exceed {MAX_TEXTS} choices")
        check_new_tokens(num_choices, self.max_tokens)
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each as text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]
        return list(self.prompt)  # type: ignore[arg-type]

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end a text."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
