"""Bounds of a request's contents, which the OpenAPI documents show."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from poolbench.config import StrictModel
from poolbench.contracts.bounds import MAX_WIDTH, PRINTABLE

MAX_TEXTS = 1024
MAX_TEXT_CHARS = 2**20
MAX_TOTAL_CHARS = 2**23
MAX_PROMPT_TOKENS = 2**18
MAX_NEW_TOKENS = 2**20  # of one text, and of all texts of a request together
MAX_SEED = 2**63 - 1
MAX_TEMPERATURE = 2.0  # vLLM takes no more
MAX_NAME_CHARS = 512
MAX_LABEL_CHARS = 256
MAX_STOP_CHARS = 256
MAX_VECTORS = 65_536
MAX_FLOAT32 = 3.4028234663852886e38


class RequestBody(StrictModel):
    """A body over HTTP: unknown fields are refused, no value is converted, and numbers are finite."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


def valid_unicode(value: Any) -> Any:
    """Return the value; raise ValueError for a text with a lone surrogate, which UTF-8 cannot hold."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            surrogate = ascii(value[error.start])
            raise ValueError(
                f"character {error.start} is {surrogate}, a lone surrogate; texts must be valid Unicode"
            ) from None
    return value


_UNICODE = BeforeValidator(valid_unicode)

Text = Annotated[str, Field(max_length=MAX_TEXT_CHARS), _UNICODE]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)]
Name = Annotated[str, Field(max_length=MAX_NAME_CHARS, pattern=PRINTABLE), _UNICODE]
Label = Annotated[str, Field(max_length=MAX_LABEL_CHARS, pattern=PRINTABLE), _UNICODE]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS), _UNICODE]
Vector = Annotated[
    list[Annotated[float, Field(ge=-MAX_FLOAT32, le=MAX_FLOAT32)]],
    Field(min_length=1, max_length=MAX_WIDTH, fail_fast=True),
]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
Temperature = Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)]
TopP = Annotated[float, Field(gt=0, le=1)]


def check_total_chars(texts: Sequence[str]) -> None:
    """Raise ValueError when the texts of one request are too long together."""
    total = sum(map(len, texts))
    if total > MAX_TOTAL_CHARS:
        raise ValueError(
            f"the texts have {total} characters together, at most {MAX_TOTAL_CHARS} are taken; send them in parts"
        )


def check_new_tokens(num_texts: int, max_tokens: int) -> None:
    """Raise ValueError when the texts of one request may become too long together."""
    if num_texts * max_tokens > MAX_NEW_TOKENS:
        raise ValueError(
            f"{num_texts} texts of up to {max_tokens} new tokens are {num_texts * max_tokens}, at most "
            f"{MAX_NEW_TOKENS} are generated for one request; send fewer texts at a time, or lower max_tokens"
        )
