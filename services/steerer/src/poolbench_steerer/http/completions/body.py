"""The body of a completion request, with the options of the OpenAI API and vLLM that are not offered."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

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

from poolbench.errors import InputError
from poolbench_steerer.http import bounds
from poolbench_steerer.http.bounds import shortened
from poolbench_steerer.http.steering import ReadingBody, Readings, SteeringBody


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
            value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in self.values
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
    store: Annotated[Any, Only(False)] = False
    service_tier: Annotated[Any, Only("auto", "default")] = "auto"
    modalities: Annotated[Any, Only(["text"])] = ["text"]
    verbosity: Annotated[Any, Only("medium")] = "medium"
    reasoning_effort: Annotated[Any, Only("none")] = "none"
    audio: Annotated[Any, Only()] = None
    prediction: Annotated[Any, Only()] = None
    web_search_options: Annotated[Any, Only()] = None


MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_TOTAL_TOKENS = 2**20

TokenIds = Annotated[list[bounds.TokenId], Field(min_length=1, max_length=bounds.MAX_PROMPT_TOKENS, fail_fast=True)]


#: Forms of a prompt, stop or reading, which the errors of pydantic name.
FORMS = ("text", "texts", "ids", "id_lists", "one", "several")


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
    """Options of a stream."""

    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: Annotated[Any, Only(False)] = False


MAX_RECORDS = 16
RECORDS = "for the caller's own records; changes nothing"


class SamplingBody(NeutralOptions, bounds.RequestBody):
    """The fields that completions and chats share; defaults are those of the OpenAI API, and null means the default."""

    model: bounds.Name | None = None
    temperature: bounds.Temperature = 1.0
    top_p: bounds.TopP = 1.0
    n: int = Field(default=1, ge=1, le=bounds.MAX_TEXTS)
    seed: bounds.Seed | None = None
    stop: Stops | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: bounds.Name | None = Field(default=None, description=RECORDS)
    metadata: dict[bounds.Name, bounds.Name] = Field(default_factory=dict, max_length=MAX_RECORDS, description=RECORDS)
    prompt_cache_key: bounds.Name | None = Field(default=None, description=RECORDS)
    safety_identifier: bounds.Name | None = Field(default=None, description=RECORDS)
    ignore_eos: bool = False
    steering: SteeringBody | None = None
    reading: Readings | None = None

    @classmethod
    def _optional(cls) -> set[str]:
        return {name for name, field in cls.model_fields.items() if not field.is_required()}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        described = handler(schema)
        properties = handler.resolve_ref_schema(described)["properties"]
        for name in cls._optional():
            properties[name] = _nullable(properties[name])
        handler.resolve_ref_schema(described)["additionalProperties"] = {"type": "null"}
        return described

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_default(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        required = cls.model_fields.keys() - cls._optional()
        return {name: field for name, field in value.items() if field is not None or name in required}

    @model_validator(mode="after")
    def _usage_is_of_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for stream: true only")
        return self

    @property
    def readings(self) -> list[ReadingBody]:
        """Return the readings of the request."""
        if self.reading is None:
            return []
        return self.reading if isinstance(self.reading, list) else [self.reading]

    @property
    def stops(self) -> tuple[str, ...]:
        """Return strings that end a text."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class CompletionBody(SamplingBody):
    """A completion request."""

    prompt: Prompt
    max_tokens: int = Field(default=16, ge=0, le=bounds.MAX_NEW_TOKENS, description="0 is for echo alone")
    best_of: int | None = Field(default=None, ge=1, le=bounds.MAX_TEXTS, description="n, if anything")
    echo: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS, description="with echo, of the prompt too")

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
        if self.num_choices > bounds.MAX_TEXTS:
            raise ValueError(f"{len(self.prompts)} prompts with n {self.n} exceed {bounds.MAX_TEXTS} choices")
        bounds.check_new_tokens(self.num_choices, self.max_tokens)
        return self

    @property
    def num_choices(self) -> int:
        """Return how many texts are made."""
        return len(self.prompts) * self.n

    @property
    def prompts(self) -> list[str | list[int]]:
        """Return the prompts, each as text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]
        return list(self.prompt)  # type: ignore[arg-type]


MAX_MESSAGES = 1024
MAX_PARTS = 64
#: What a chat answers at most when the request does not say.
CHAT_TOKENS = 256


#: Values that say nothing, in a message that a client kept with all fields of an answer.
NOTHING: tuple[Any, ...] = (None, "", [], {})


class AllowsEmptyFields(bounds.RequestBody):
    """An object that may hold further fields if they say nothing, such as `refusal: null` and `annotations: []`."""

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: field for name, field in value.items() if name in cls.model_fields or field not in NOTHING}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        described = handler(schema)
        handler.resolve_ref_schema(described)["additionalProperties"] = {"enum": list(NOTHING)}
        return described


class TextPart(AllowsEmptyFields):
    """A part of a message; only text is taken."""

    type: Literal["text"]
    text: bounds.Text


class Message(AllowsEmptyFields):
    """One message of a chat; the model's own template decides which roles it knows."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Annotated[bounds.Text, Tag("text")]
        | Annotated[Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS)], Tag("parts")],
        Discriminator(lambda content: "parts" if isinstance(content, list) else "text"),
    ]
    name: bounds.Name | None = None
    provider_specific_fields: dict[str, Any] | None = Field(default=None, max_length=MAX_RECORDS, description=RECORDS)

    @model_validator(mode="before")
    @classmethod
    def _is_no_tool_call(cls, value: Any) -> Any:
        if isinstance(value, dict) and (
            value.get("role") in ("tool", "function") or value.get("tool_calls") or value.get("function_call")
        ):
            raise ValueError("calls of tools and their results are not supported here; send messages of text alone")
        return value

    @property
    def text(self) -> str:
        """Return the content as one text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)

    @property
    def said(self) -> dict[str, str]:
        """Return the message as chat templates take it."""
        return {"role": self.role, "content": self.text} | ({} if self.name is None else {"name": self.name})


class ChatBody(SamplingBody):
    """A chat request: messages, which the model's own template makes a prompt."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_tokens: int = Field(default=CHAT_TOKENS, ge=1, le=bounds.MAX_NEW_TOKENS)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=bounds.MAX_NEW_TOKENS, description="as max_tokens")
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MAX_LOGPROBS, description="with logprobs: true")
    tools: Annotated[Any, Only([])] = []
    tool_choice: Annotated[Any, Only("none", "auto")] = "none"
    functions: Annotated[Any, Only([])] = []
    function_call: Annotated[Any, Only("none", "auto")] = "none"
    parallel_tool_calls: Annotated[Any, Only(True, False)] = True
    add_generation_prompt: Annotated[Any, Only(True)] = True
    continue_final_message: Annotated[Any, Only(False)] = False
    add_special_tokens: Annotated[Any, Only(False)] = False  # the template writes them
    echo: Annotated[Any, Only(False)] = False
    chat_template: Annotated[Any, Only()] = None
    chat_template_kwargs: Annotated[Any, Only({})] = {}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        bounds.check_total_chars([message.text for message in self.messages])
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs is for logprobs: true only")
        bounds.check_new_tokens(self.n, self.max_completion_tokens or self.max_tokens)
        return self

    @property
    def num_choices(self) -> int:
        """Return how many messages are made."""
        return self.n

    @property
    def conversation(self) -> list[dict[str, str]]:
        """Return the messages as chat templates take them."""
        return [message.said for message in self.messages]

    def completion(self, prompt_ids: Sequence[int]) -> CompletionBody:
        """Return the completion that answers a chat whose prompt has these tokens; raise InputError for too many."""
        if len(prompt_ids) > bounds.MAX_PROMPT_TOKENS:
            raise InputError(
                f"the messages have {len(prompt_ids)} tokens, at most {bounds.MAX_PROMPT_TOKENS} are taken"
            )
        same = {name: getattr(self, name) for name in SamplingBody.model_fields.keys() - NeutralOptions.model_fields}
        return CompletionBody(
            **same,
            prompt=list(prompt_ids),
            max_tokens=self.max_completion_tokens or self.max_tokens,
            logprobs=self.top_logprobs if self.logprobs else None,
        )
