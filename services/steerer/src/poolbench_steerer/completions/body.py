"""The bodies of completions and chats: the options of the OpenAI API and of vLLM that are offered, and their bounds."""

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

from poolbench.http.error_form import shortened
from poolbench.http.openai_routes import prompt_form
from poolbench_steerer.completions.forms import NamedTool, ResponseFormat, StructuredOutputs, ToolName, Tools
from poolbench_steerer.http import bounds
from poolbench_steerer.http.steering import PoolBody, ReadingBody, Readings, SteeringBody


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
    """Options that clients send by default, and that are offered with no other value. vLLM does not get them.

    `priority`, `kv_transfer_params` and `request_id` could reach into the texts of other clients. The other ones have
    no part in this service.
    """

    suffix: Annotated[Any, Only("")] = ""
    length_penalty: Annotated[Any, Only(1)] = 1
    use_beam_search: Annotated[Any, Only(False)] = False
    priority: Annotated[Any, Only(0)] = 0
    prompt_logprobs: Annotated[Any, Only()] = None
    truncate_prompt_tokens: Annotated[Any, Only()] = None
    guided_json: Annotated[Any, Only()] = None
    kv_transfer_params: Annotated[Any, Only()] = None
    request_id: Annotated[Any, Only()] = None
    store: Annotated[Any, Only(False)] = False
    service_tier: Annotated[Any, Only("auto", "default")] = "auto"
    modalities: Annotated[Any, Only(["text"])] = ["text"]
    verbosity: Annotated[Any, Only("medium")] = "medium"
    audio: Annotated[Any, Only()] = None
    prediction: Annotated[Any, Only()] = None
    web_search_options: Annotated[Any, Only()] = None


MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_TOTAL_TOKENS = 2**20
MAX_PENALTY, MAX_BIAS = 2.0, 100.0  # as in the OpenAI API
MIN_REPETITION = 1e-6  # logits are divided by it, and must stay finite
MAX_TOKEN_IDS = 1024

TokenIds = Annotated[list[bounds.TokenId], Field(min_length=1, max_length=bounds.MAX_PROMPT_TOKENS, fail_fast=True)]

Prompt = Annotated[
    Annotated[bounds.Text, Tag("text")]
    | Annotated[bounds.Texts, Tag("texts")]
    | Annotated[TokenIds, Tag("ids")]
    | Annotated[
        Annotated[list[TokenIds], Field(min_length=1, max_length=bounds.MAX_TEXTS, fail_fast=True)], Tag("id_lists")
    ],
    Discriminator(prompt_form),
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
Penalty = Annotated[float, Field(ge=-MAX_PENALTY, le=MAX_PENALTY)]
Bias = Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]
SomeTokenIds = Annotated[list[bounds.TokenId], Field(max_length=MAX_TOKEN_IDS, fail_fast=True)]


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
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    repetition_penalty: float = Field(default=1.0, ge=MIN_REPETITION, le=MAX_PENALTY)
    logit_bias: dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Bias] = Field(default={}, max_length=MAX_TOKEN_IDS)
    top_k: int = Field(default=0, ge=-1, lt=2**31)
    min_p: float = Field(default=0.0, ge=0, le=1)
    min_tokens: int = Field(default=0, ge=0, le=bounds.MAX_NEW_TOKENS)
    stop_token_ids: SomeTokenIds = []
    allowed_token_ids: Annotated[SomeTokenIds, Field(min_length=1)] | None = None
    bad_words: list[bounds.Stop] = Field(default=[], max_length=MAX_STOPS)
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    user: bounds.Name | None = Field(default=None, description=RECORDS)
    metadata: dict[bounds.Name, bounds.Name] = Field(default_factory=dict, max_length=MAX_RECORDS, description=RECORDS)
    prompt_cache_key: bounds.Name | None = Field(default=None, description=RECORDS)
    safety_identifier: bounds.Name | None = Field(default=None, description=RECORDS)
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

    @model_validator(mode="after")
    def _a_form_leaves_tokens(self) -> Self:
        # A grammar that accepts none of the allowed tokens would make vLLM fail the text.
        has_form = self.structured_outputs or (self.response_format and self.response_format.type != "text")
        if has_form and self.allowed_token_ids is not None:
            raise ValueError("allowed_token_ids is not taken beside a form of the answer; leave one of both out")
        return self

    @property
    def readings(self) -> list[ReadingBody | PoolBody]:
        """Return the readings of the request."""
        if self.reading is None:
            return []
        return self.reading if isinstance(self.reading, list) else [self.reading]

    def values(self) -> dict[str, Any]:
        """Return the fields for vLLM."""
        values = self.model_dump(exclude=_NOT_FOR_VLLM, exclude_none=True, by_alias=True)
        if self.n > 1 and self.temperature == 0:  # vLLM refuses this; to sample among one token is the same
            values |= {"temperature": 1.0, "top_k": 1}
        return values


_NOT_FOR_VLLM = {
    *NeutralOptions.model_fields,
    *("user", "metadata", "prompt_cache_key", "safety_identifier", "steering", "reading", "best_of"),
}


class CompletionBody(SamplingBody):
    """A completion request."""

    prompt: Prompt
    max_tokens: int = Field(default=16, ge=0, le=bounds.MAX_NEW_TOKENS, description="0 is for echo alone")
    best_of: int | None = Field(default=None, ge=1, le=bounds.MAX_TEXTS, description="n, if anything")
    echo: bool = False
    add_special_tokens: bool = True
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
    def num_new(self) -> int:
        """Return how many tokens a text may get."""
        return self.max_tokens

    @property
    def num_choices(self) -> int:
        """Return how many texts are made."""
        return len(self.prompts) * self.n

    def values(self) -> dict[str, Any]:
        """Return the fields for vLLM, which refuses an empty prompt unless it is in a list."""
        return super().values() | {"prompt": [""] if self.prompt == "" else self.prompt}

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


class CalledFunction(AllowsEmptyFields):
    """The function that a model has called."""

    name: ToolName
    arguments: bounds.Text = Field(description="JSON")


class ToolCall(AllowsEmptyFields):
    """A call of a tool, as an answer has it."""

    id: bounds.Name
    type: Literal["function"]
    function: CalledFunction


class Message(AllowsEmptyFields):
    """One message of a chat; the model's own template decides which roles it knows."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        Annotated[
            Annotated[bounds.Text, Tag("text")]
            | Annotated[Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS)], Tag("parts")],
            Discriminator(lambda content: "parts" if isinstance(content, list) else "text"),
        ]
        | None
    ) = None
    name: bounds.Name | None = None
    tool_calls: list[ToolCall] | None = Field(default=None, max_length=MAX_PARTS)
    tool_call_id: bounds.Name | None = None
    provider_specific_fields: dict[str, Any] | None = Field(default=None, max_length=MAX_RECORDS, description=RECORDS)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.content is None and not self.tool_calls:
            raise ValueError("give the content of the message; only calls of tools stand alone")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only the assistant calls tools")
        return self

    @property
    def text(self) -> str | None:
        """Return the content as one text."""
        if not isinstance(self.content, list):
            return self.content
        return "".join(part.text for part in self.content)

    @property
    def for_vllm(self) -> dict[str, Any]:
        """Return the message as vLLM takes it."""
        others = self.model_dump(include={"role", "name", "tool_calls", "tool_call_id"}, exclude_none=True)
        if not others.get("tool_calls"):
            others.pop("tool_calls", None)
        return others | ({} if self.text is None else {"content": self.text})


class ChatBody(SamplingBody):
    """A chat request: messages, which the model's own template makes a prompt."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_tokens: int = Field(default=CHAT_TOKENS, ge=1, le=bounds.MAX_NEW_TOKENS)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=bounds.MAX_NEW_TOKENS, description="as max_tokens")
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MAX_LOGPROBS, description="with logprobs: true")
    tools: Tools = []
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = True
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high"] | None = None
    chat_template_kwargs: dict[bounds.Name, bool | Annotated[int, Field(ge=-(2**31), lt=2**31)] | bounds.Name] = Field(
        default={}, max_length=MAX_RECORDS, description="variables of the model's own template"
    )
    functions: Annotated[Any, Only([])] = []
    function_call: Annotated[Any, Only("none", "auto")] = "none"
    add_generation_prompt: Annotated[Any, Only(True)] = True
    continue_final_message: Annotated[Any, Only(False)] = False
    add_special_tokens: Annotated[Any, Only(False)] = False  # the template writes them
    echo: Annotated[Any, Only(False)] = False
    chat_template: Annotated[Any, Only()] = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        calls = [call for message in self.messages for call in message.tool_calls or ()]
        texts = [message.text or "" for message in self.messages]
        bounds.check_total_chars([*texts, *(call.function.arguments for call in calls)])
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs is for logprobs: true only")
        if not self.tools and self.tool_choice not in (None, "none", "auto"):
            raise ValueError("tool_choice is for tools, and there are none")
        bounds.check_new_tokens(self.n, self.num_new)
        return self

    @property
    def num_new(self) -> int:
        """Return how many tokens a message may get."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_choices(self) -> int:
        """Return how many messages are made."""
        return self.n

    def values(self) -> dict[str, Any]:
        """Return the fields for vLLM."""
        left_out = {"functions", "function_call", "max_tokens", *(() if self.tools else ("tools", "tool_choice"))}
        values = {name: value for name, value in super().values().items() if name not in left_out}
        messages = [message.for_vllm for message in self.messages]
        return values | {"messages": messages, "max_completion_tokens": self.num_new}
