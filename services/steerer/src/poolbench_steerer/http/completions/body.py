"""The body of a completion request, with the options of the OpenAI API and vLLM that are not offered."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from poolbench_steerer.http import bounds
from poolbench_steerer.http.bounds import shortened
from poolbench_steerer.http.steering import SteeringBody


class Only:
    """Marks an option that accepts only these values, or null."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": [*self.values, None]}

    def _check(self, value: Any) -> Any:
        # Python's True equals 1: a bool is neutral only where the option is one.
        if value is None or any(
            value == known and isinstance(value, bool) == isinstance(known, bool) for known in self.values
        ):
            return value
        allowed = " or ".join(map(repr, self.values)) or "null"
        raise ValueError(f"{shortened(value)} is not supported here; leave the option out or send {allowed}")


class NeutralOptions(BaseModel):
    """Options that clients send by default; none of them changes a text."""

    frequency_penalty: Annotated[Any, Only(0)] = 0
    presence_penalty: Annotated[Any, Only(0)] = 0
    logit_bias: Annotated[Any, Only({})] = {}
    suffix: Annotated[Any, Only("")] = ""
    repetition_penalty: Annotated[Any, Only(1)] = 1
    length_penalty: Annotated[Any, Only(1)] = 1
    top_k: Annotated[Any, Only(-1, 0)] = 0
    min_p: Annotated[Any, Only(0)] = 0
    min_tokens: Annotated[Any, Only(0)] = 0
    use_beam_search: Annotated[Any, Only(False)] = False
    stop_token_ids: Annotated[Any, Only([])] = []
    bad_words: Annotated[Any, Only([])] = []
    include_stop_str_in_output: Annotated[Any, Only(False)] = False
    skip_special_tokens: Annotated[Any, Only(True)] = True
    spaces_between_special_tokens: Annotated[Any, Only(True)] = True
    add_special_tokens: Annotated[Any, Only(True)] = True
    return_tokens_as_token_ids: Annotated[Any, Only(False)] = False
    return_token_ids: Annotated[Any, Only(False)] = False
    response_format: Annotated[Any, Only({"type": "text"})] = {"type": "text"}
    priority: Annotated[Any, Only(0)] = 0
    allowed_token_ids: Annotated[Any, Only()] = None
    prompt_logprobs: Annotated[Any, Only()] = None
    truncate_prompt_tokens: Annotated[Any, Only()] = None
    guided_json: Annotated[Any, Only()] = None
    structured_outputs: Annotated[Any, Only()] = None
    kv_transfer_params: Annotated[Any, Only()] = None
    request_id: Annotated[Any, Only()] = None


MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_TOTAL_TOKENS = 2**20

TokenIds = Annotated[list[bounds.TokenId], Field(min_length=1, max_length=bounds.MAX_PROMPT_TOKENS, fail_fast=True)]


#: Forms of a prompt or stop, which the errors of pydantic name.
FORMS = ("text", "texts", "ids", "id_lists")


def _form(prompt: Any) -> str:
    """Return which of its four forms a prompt has; the first item decides, so that errors name the wrong one."""
    if not isinstance(prompt, list):
        return "text"
    if prompt and isinstance(prompt[0], (list, str)):
        return "texts" if isinstance(prompt[0], str) else "id_lists"
    return "ids"


Prompt = Annotated[
    Annotated[bounds.Text, Tag("text")]
    | Annotated[bounds.Texts, Tag("texts")]
    | Annotated[TokenIds, Tag("ids")]
    | Annotated[
        Annotated[list[TokenIds], Field(min_length=1, max_length=bounds.MAX_TEXTS, fail_fast=True)], Tag("id_lists")
    ],
    Discriminator(_form),
]
Stops = Annotated[
    Annotated[bounds.Stop, Tag("text")]
    | Annotated[Annotated[list[bounds.Stop], Field(max_length=MAX_STOPS, fail_fast=True)], Tag("texts")],
    Discriminator(lambda stop: "texts" if isinstance(stop, list) else "text"),
]


def _nullable(described: dict[str, Any]) -> dict[str, Any]:
    null = {"type": "null"}
    if None in described.get("enum", ()) or null in described.get("anyOf", ()):
        return described
    return {"anyOf": [described, null]}


class StreamOptions(bounds.RequestBody):
    """What a stream ends with."""

    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: Annotated[Any, Only(False)] = False


class CompletionBody(NeutralOptions, bounds.RequestBody):
    """A completion request; defaults are those of the OpenAI API, and null stands for the default."""

    prompt: Prompt
    model: bounds.Name | None = None
    max_tokens: int = Field(default=16, ge=0, le=bounds.MAX_NEW_TOKENS, description="0 is for echo alone")
    temperature: bounds.Temperature = 1.0
    top_p: bounds.TopP = 1.0
    n: int = Field(default=1, ge=1, le=bounds.MAX_TEXTS)
    best_of: int | None = Field(default=None, ge=1, le=bounds.MAX_TEXTS, description="n, if anything")
    seed: bounds.Seed | None = None
    stop: Stops | None = None
    echo: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS, description="with echo, of the prompt too")
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: bounds.Name | None = Field(default=None, description="for the caller's own records")
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
            bounds.check_total_chars(parts)
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
        if num_choices > bounds.MAX_TEXTS:
            raise ValueError(f"{len(self.prompts)} prompts with n {self.n} exceed {bounds.MAX_TEXTS} choices")
        bounds.check_new_tokens(num_choices, self.max_tokens)
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """Return the prompts, each as text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]
        return list(self.prompt)  # type: ignore[arg-type]

    @property
    def stops(self) -> tuple[str, ...]:
        """Return strings that end a text."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
