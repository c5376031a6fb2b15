"""What a completion request may hold."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from poolbench.config import StrictModel
from poolbench_steerer.http.steering import SteeringBody

MAX_CHOICES = 1024
MAX_LOGPROBS = 20
#: Fields of the API that would change the text and are not offered; their neutral values are taken.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (None, 0, 0.0),
    "presence_penalty": (None, 0, 0.0),
    "logit_bias": (None, {}),
    "suffix": (None, ""),
}


class StreamOptions(StrictModel):
    """What a stream ends with."""

    include_usage: bool = False
    include_obfuscation: bool = False


class CompletionBody(StrictModel):
    """A completion request; defaults are those of the OpenAI API."""

    prompt: str | list[str] | list[int] | list[list[int]]
    model: str | None = None
    max_tokens: int = Field(default=16, gt=0)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    best_of: int | None = Field(default=None, ge=1)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    stop: str | list[str] | None = None
    echo: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None  # for the caller's own records
    ignore_eos: bool = False
    steering: SteeringBody | None = None

    @model_validator(mode="before")
    @classmethod
    def _not_offered(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name, neutral in _NEUTRAL.items():
            if name in value and value[name] not in neutral:
                raise ValueError(f"{name} is not supported here; leave it out")
        # Clients send null for what they leave out.
        return {name: field for name, field in value.items() if name not in _NEUTRAL and field is not None}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.prompt and self.prompt != "":
            raise ValueError("prompt is an empty list; give at least one prompt")
        if self.best_of not in (None, self.n):
            raise ValueError(f"best_of {self.best_of} is not supported; it must equal n ({self.n})")
        if any(not text for text in self.stops):
            raise ValueError("stop holds an empty string")
        if self.echo and self.logprobs is not None:
            raise ValueError("echo with logprobs is not supported; POST /steerer/perplexity scores given texts")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for stream: true only")
        if len(self.prompts) * self.n > MAX_CHOICES:
            raise ValueError(f"{len(self.prompts)} prompts with n {self.n} exceed {MAX_CHOICES} choices")
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
