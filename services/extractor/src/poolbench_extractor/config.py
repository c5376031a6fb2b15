"""Parameters of the extractor's tasks and requests, responses, and batch sizes."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from poolbench.config import ModelRef, StrictModel
from poolbench.contracts.bounds import (
    MAX_CHARACTERS,
    ArtifactKey,
    Flag,
    Label,
    Layer,
    ModelName,
    Name,
    StrategyParams,
    Text,
    Vector,
    Whole,
)
from poolbench.model_folders.folders import requested_model
from poolbench.steps.base import SinkParams
from poolbench.steps.extractor import ReadingParams

#: Texts of one HTTP request, as many as the OpenAI API takes.
MAX_TEXTS = 2_048
#: Characters of all texts of one HTTP request.
MAX_REQUEST_CHARACTERS = 5_000_000
#: The same where every token is an object of the answer.
MAX_EXPLAINED_CHARACTERS = 200_000
#: Features of one request, each a number of every token.
MAX_FEATURES = 32
#: Texts of one forward pass, whatever a request asks for.
MAX_BATCH = 4_096
#: Words of one annotated text.
MAX_WORDS = 500_000
#: Place of a character, or of a word, in its text.
Place = Annotated[int, Field(strict=True, ge=0, le=MAX_CHARACTERS)]
Places = Annotated[list[Place], Field(max_length=MAX_WORDS, fail_fast=True)]
#: Number of a feature of an autoencoder.
Feature = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Tags = Annotated[list[Label], Field(max_length=MAX_WORDS, fail_fast=True)]


class BatchLimits(StrictModel):
    """The largest batch; it changes speed and memory, never results.

    Attributes:
        max_tokens: Positions of a batch, padding included.
        max_loss_tokens: The same where a loss is propagated back through the model, which keeps activations.
        padding_side: `right` lets the model use its fastest attention; `left` is for comparisons.
    """

    max_tokens: int = Field(default=8192, gt=0)
    max_loss_tokens: int = Field(default=4096, gt=0)
    max_passages: int = Field(default=64, gt=0)
    padding_side: str = Field(default="right", pattern="^(left|right)$")


class Annotation(StrictModel):
    """One row of `POST /pooler/annotate`: columns of one entry for each word."""

    passage_id: Text = ""
    word_start: Places
    word_end: Places
    upos: Tags
    dep: Tags
    head: Places
    lemma: list[Text] = Field(max_length=MAX_WORDS, fail_fast=True)
    entity: Tags
    sentence: Places
    clause: Places
    keyword: list[Flag] = Field(max_length=MAX_WORDS, fail_fast=True)


class EmbedRequest(ReadingParams, SinkParams):
    """Body of `POST /embed`.

    Attributes:
        texts: A text that cannot be computed is a row with status and reason.
        ids: Names of the texts, for strategies that draw at random; the default name is a hash of the content.
        annotations: Rows of `POST /pooler/annotate` for these texts, for strategies that read annotations.
        layer: Block index, where negative ones count from the end; or `embedding` or `final`.
        batch_size: Most texts of a forward pass.
        padding_side: Changes speed, never results.
    """

    texts: list[Text] = Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)
    ids: Annotated[list[Name | None], Field(max_length=MAX_TEXTS, fail_fast=True)] | None = None
    annotations: Annotated[list[Annotation], Field(max_length=MAX_TEXTS, fail_fast=True)] | None = None
    model: ModelName = "demo"
    strategy: Name = "A1_mean"
    params: StrategyParams = Field(default_factory=dict)
    layer: Layer | Literal["embedding", "final"] = -1
    batch_size: Whole | None = Field(default=None, gt=0, le=MAX_BATCH)
    padding_side: Literal["left", "right"] = "right"

    def reference(self) -> ModelRef:
        """Return the model; raise ModelError for a folder that requests may not name."""
        return requested_model(self.model, revision=self.model_revision, dtype=self.dtype)

    def limits(self) -> BatchLimits:
        """Return the default batch limits with the request's `batch_size` and `padding_side`."""
        overrides = {} if self.batch_size is None else {"max_passages": self.batch_size}
        return BatchLimits(padding_side=self.padding_side, **overrides)


class ExplainRequest(EmbedRequest):
    """Body of `POST /explain`.

    Attributes:
        direction: A number for each dimension of the model's states; without it tokens have weights alone.
        autoencoder: Key of a sparse autoencoder of the layer in the object store.
        features: The features of it that tokens have activations of.
    """

    direction: Vector | None = None
    autoencoder: ArtifactKey | None = None
    features: Annotated[list[Feature], Field(max_length=MAX_FEATURES, fail_fast=True)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _features_have_an_autoencoder(self) -> Self:
        if (self.autoencoder is None) != (not self.features):
            raise ValueError("`autoencoder` and `features` belong together; give both or neither")
        return self


class ExplainedToken(StrictModel):
    """One token of a text, and what it adds to the vector."""

    text: str
    start: int = Field(description="first character of the token in the text")
    end: int
    special: bool = Field(description="whether the tokenizer added it; such tokens have no weight, but for P2 and A11")
    weight: float = Field(description="of max, min and median the share of dimensions whose value is the token's")
    contribution: float | None = Field(description="w_t (h_t . d); null without a direction")
    activations: list[float] | None = Field(
        description="of the features, in their order; null without any, and of special tokens and attention sinks"
    )


class ExplainedText(StrictModel):
    """The tokens of a text; their contributions sum to the projection of its vector on the direction."""

    id: str
    status: str
    reason: str | None = Field(description="why a text failed, null where it did not")
    projection: float | None
    tokens: list[ExplainedToken]


class ExplainAnswer(StrictModel):
    """The contributions of the tokens of each text to its vector."""

    model: str
    model_revision: str
    strategy: str
    strategy_version: int
    layer: int = Field(description="block, counted from 0; -1 is the embedding, the number of blocks is `final`")
    texts: list[ExplainedText]


class EmbedAnswer(StrictModel):
    """Vectors of texts, one entry per text in every list, and how they were made."""

    model: str
    model_revision: str
    dtype: str
    strategy: str
    strategy_version: int
    params: dict[str, Any] = Field(description="parameters of the strategy, defaults included")
    layer: int = Field(description="block, counted from 0; -1 is the embedding, the number of blocks is `final`")
    include_bos: bool
    add_bos: bool
    sinks: Literal["exclude", "include"]
    num_failed: int = Field(ge=0, description="texts whose status is not ok")
    ids: list[str]
    vectors: list[list[float] | None] = Field(description="null where the text failed")
    applied: list[bool] = Field(description="false where nothing was selected and A1 was taken instead")
    token_share: list[float] = Field(description="share of the tokens that carry weight")
    num_sinks: list[int] = Field(description="attention sinks of the text at this layer")
    num_left_out: list[int] = Field(description="sinks that the strategy left out")
    status: list[str]
    reason: list[str | None] = Field(description="why a text failed, null where it did not")


class ModelAnswer(StrictModel):
    """The shape of a model, from its configuration alone."""

    revision: str | None
    num_blocks: int
    width: int
    window: int | None = Field(description="longest input in tokens, null where the model names none")
    architecture: Literal["encoder", "decoder"] = Field(description="how the model is read")
    num_parameters: int | None = Field(description="weights, null where the class is in the model's repository")
