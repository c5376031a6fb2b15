"""What the extractor's tasks and requests carry, and how a deployment sizes its batches."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from poolbench.config import ModelRef, StrictModel
from poolbench.contracts.bounds import (
    MAX_CHARACTERS,
    Flag,
    Label,
    Layer,
    ModelName,
    Name,
    StrategyParams,
    Text,
    Whole,
)
from poolbench.runtime.folders import requested_model
from poolbench.steps.extractor import ReadingParams

MAX_TEXTS = 1_024
"""Texts of one HTTP request."""

MAX_REQUEST_CHARACTERS = 5_000_000
"""Characters of all texts of one HTTP request."""

MAX_BATCH = 4_096
"""Texts of one forward pass, whatever a request asks for."""

MAX_WORDS = 500_000
"""Words of one annotated text."""

#: Place of a character, or of a word, in its text.
Place = Annotated[int, Field(strict=True, ge=0, le=MAX_CHARACTERS)]
Places = Annotated[list[Place], Field(max_length=MAX_WORDS, fail_fast=True)]
Tags = Annotated[list[Label], Field(max_length=MAX_WORDS, fail_fast=True)]


class BatchLimits(StrictModel):
    """How large a batch may get; changes speed and memory, never results.

    Attributes:
        max_tokens: Positions of a batch, padding included.
        max_loss_tokens: The same where a loss goes back through the model, and activations must be kept for it.
        max_passages: Passages of a batch.
        padding_side: ``right`` lets the model use its fastest attention; ``left`` is for comparisons.
    """

    max_tokens: int = Field(default=8192, gt=0)
    max_loss_tokens: int = Field(default=4096, gt=0)
    max_passages: int = Field(default=64, gt=0)
    padding_side: str = Field(default="right", pattern="^(left|right)$")


class Annotation(StrictModel):
    """One row of ``POST /pooler/annotate``: columns of one entry for each word."""

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


class EmbedRequest(ReadingParams):
    """Body of ``POST /embed``.

    Attributes:
        texts: What to read; a text that cannot be computed is a row with status and reason.
        ids: Name the texts, where strategies draw at random; a text without one is named by its content.
        annotations: Rows of ``POST /pooler/annotate`` for these texts, for strategies that read annotations.
        layer: Block index; negative ones count from the end.
        batch_size: Texts of a forward pass at most.
        padding_side: Changes speed, never results.
    """

    texts: list[Text] = Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)
    ids: Annotated[list[Name | None], Field(max_length=MAX_TEXTS, fail_fast=True)] | None = None
    annotations: Annotated[list[Annotation], Field(max_length=MAX_TEXTS, fail_fast=True)] | None = None
    model: ModelName = "demo"
    strategy: Name = "A1_mean"
    params: StrategyParams = Field(default_factory=dict)
    layer: Layer = -1
    batch_size: Whole | None = Field(default=None, gt=0, le=MAX_BATCH)
    padding_side: Literal["left", "right"] = "right"

    def reference(self) -> ModelRef:
        """The model, if requests may name it.

        Raises:
            ModelError: For a folder that is not allowed.
        """
        return requested_model(self.model, revision=self.model_revision, dtype=self.dtype)

    def limits(self) -> BatchLimits:
        """How large the batches get."""
        given = {} if self.batch_size is None else {"max_passages": self.batch_size}
        return BatchLimits(padding_side=self.padding_side, **given)
