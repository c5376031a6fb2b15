"""`POST /v1/embeddings`: the vectors of `POST /embed` in the form of the OpenAI API."""

import base64
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema, model_validator

from poolbench.config import EMBEDDING, FINAL, StrictModel
from poolbench.contracts.bounds import MAX_CHARACTERS, MAX_WIDTH, Name, Text, require_at_most
from poolbench.contracts.tables import vector_matrix
from poolbench.errors import ConfigError, InputError
from poolbench.http.error_form import shortened
from poolbench.http.openai_routes import prompt_form
from poolbench.pooling.batch import Request
from poolbench_extractor.config import MAX_TEXTS, EmbedRequest
from poolbench_extractor.embedding.texts import embed, passages_of, reading_of, unsupervised
from poolbench_extractor.encode import PassageTexts, encode, tokenise
from poolbench_extractor.models.decoder import Decoder

_NAME = rf"^([^\x00-\x1f\x7f]{{1,1000}})\+([^\x00-\x1f\x7f+@]{{1,200}})@(-?[0-9]{{1,3}}|{EMBEDDING}|{FINAL})$"
_MAX_NAME = 1_300


class EmbeddingName(StrictModel):
    """The name of an embedding: `demo+A1_mean@4` is the strategy `A1_mean` at layer 4 of the model `demo`."""

    model: str
    strategy: str
    layer: int | Literal["embedding", "final"]

    @classmethod
    def parse(cls, name: str) -> "EmbeddingName":
        """Parse a name. Raise ValueError for another form."""
        match = re.fullmatch(_NAME, name)
        if match is None:
            raise ValueError(
                f"{shortened(name)} does not name an embedding; send MODEL+STRATEGY@LAYER, such as demo+A1_mean@4, "
                f"where LAYER is the number of a block (-1 is the last one), `{EMBEDDING}` or `{FINAL}`"
            )
        model, strategy, layer = match.groups()
        return cls(model=model, strategy=strategy, layer=layer if layer in (EMBEDDING, FINAL) else int(layer))


def _checked(name: str) -> str:
    EmbeddingName.parse(name)
    return name


TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_CHARACTERS, fail_fast=True)]
Input = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)], Tag("texts")]
    | Annotated[TokenIds, Tag("ids")]
    | Annotated[Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)], Tag("id_lists")],
    Discriminator(prompt_form),
]


class EmbeddingsRequest(StrictModel):
    """Body of `POST /v1/embeddings`. A field that is null is left out.

    Attributes:
        model: Model, strategy and layer, as in `demo+A1_mean@4`.
        input: A text, texts, token ids of the model's tokenizer, or lists of token ids.
        encoding_format: Numbers, or the base64 of little-endian float32.
        dimensions: The width of the model. A part of a vector is not a smaller embedding here.
        user: For the caller's own records; changes nothing.
    """

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"type": "null"}})

    model: Annotated[
        str,
        AfterValidator(_checked),
        WithJsonSchema({"type": "string", "maxLength": _MAX_NAME, "pattern": _NAME}),
    ]
    input: Input
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(strict=True, gt=0, le=MAX_WIDTH)] | None = None
    user: Name | None = None

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, body: Any) -> Any:
        return {name: value for name, value in body.items() if value is not None} if isinstance(body, dict) else body

    @property
    def inputs(self) -> Sequence[str | list[int]]:
        """Return the inputs as a list, also where there is only one."""
        is_one = prompt_form(self.input) in ("text", "ids")
        return [self.input] if is_one else self.input  # type: ignore[return-value, list-item]


class Embedding(StrictModel):
    """The vector of one input."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="numbers, or the base64 of little-endian float32")


class EmbeddingsUsage(StrictModel):
    """Tokens of all inputs, special ones included."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(StrictModel):
    """The vectors of the inputs, in their order."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EmbeddingsUsage


def pooling_of(name: EmbeddingName) -> Request:
    """Return the strategy of an embedding. Raise ConfigError if it needs more than texts."""
    pooling = unsupervised(name.strategy)
    if pooling.strategy.reads_annotations:
        raise ConfigError(
            f"strategy {name.strategy} reads annotations, for which the OpenAI API has no field: "
            "`poolbench-driver embed` asks for them, and `POST /embed` takes them"
        )
    return pooling


def answer(decoder: Decoder, request: EmbeddingsRequest, pooling: Request) -> dict[str, Any]:
    """Return the vectors of the inputs.

    Raises:
        TooLargeError: The inputs are too long together.
        LayerError: The model has no such layer.
        ConfigError: The model has another width than `dimensions`.
        InputError: An input has token ids of another tokenizer, or cannot be embedded.
    """
    if request.dimensions not in (None, decoder.width):
        raise ConfigError(
            f"dimensions {request.dimensions}: vectors of {request.model} have {decoder.width} numbers, and a part of "
            "them is not an embedding; leave `dimensions` out"
        )
    inputs, name = request.inputs, EmbeddingName.parse(request.model)
    texts = [entry if isinstance(entry, str) else _text_of(decoder, entry) for entry in inputs]
    as_embed = EmbedRequest(model=name.model, strategy=name.strategy, layer=name.layer, texts=texts)
    passages = passages_of(as_embed, pooling)
    if id_lists := [entry for entry in inputs if not isinstance(entry, str)]:
        passages = _read_as_sent(decoder, passages, id_lists)
    encoded = encode(decoder, passages, reading_of(as_embed))
    table = embed(decoder, as_embed, pooling, encoded)
    reasons = [(number, reason) for number, reason in enumerate(table["reason"].to_pylist()) if reason is not None]
    if reasons:
        number, reason = reasons[0]
        raise InputError(f"{len(reasons)} of {len(inputs)} inputs cannot be embedded; input {number}: {reason}")
    vectors_ND = vector_matrix(table["vector"])
    is_base64 = request.encoding_format == "base64"
    num_tokens = sum(passage.num_positions for passage in encoded)
    return {
        "object": "list",
        "model": request.model,
        "data": [
            {"object": "embedding", "index": index, "embedding": _base64(vector_D) if is_base64 else vector_D.tolist()}
            for index, vector_D in enumerate(vectors_ND)
        ],
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }


def _text_of(decoder: Decoder, ids: list[int]) -> str:
    text = decoder.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    require_at_most("characters in the text of token ids", len(text), MAX_CHARACTERS, "send a shorter input")
    return str(text)


def _read_as_sent(decoder: Decoder, passages: PassageTexts, id_lists: Sequence[list[int]]) -> PassageTexts:
    """Return passages whose tokens are the given ids, with the tokenizer's special tokens or without them.

    The tokenizer must make the same ids of their text. This finds the ids of another tokenizer, which some clients send
    without being asked to.
    """
    bare = []
    for number, (context, ids) in enumerate(zip(tokenise(decoder.tokenizer, passages), id_lists, strict=True)):
        assert context.token_ids is not None
        with_special, without = context.token_ids.tolist(), context.token_ids[~context.special].tolist()
        if ids not in (with_special, without):
            raise InputError(
                f"input {number}: the model's tokenizer makes other token ids of the text of these; send ids of this "
                "tokenizer, or the text itself"
            )
        bare.append(ids != with_special)
    return PassageTexts(passages.ids, passages.texts, bare=bare)


def _base64(vector_D: np.ndarray) -> str:
    return base64.b64encode(vector_D.astype("<f4").tobytes()).decode()
