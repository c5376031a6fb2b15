"""What the extractor's verbs answer, for the OpenAPI document and for readers of it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from poolbench.config import StrictModel


class EmbedAnswer(StrictModel):
    """Vectors of texts, one entry per text in every list, and how they were made."""

    model: str
    model_revision: str
    dtype: str
    strategy: str
    strategy_version: int
    params: dict[str, Any] = Field(description="parameters of the strategy, defaults included")
    layer: int = Field(description="block index, counted from 0")
    include_bos: bool
    num_failed: int = Field(ge=0, description="texts whose status is not ok")
    ids: list[str]
    vectors: list[list[float] | None] = Field(description="null where the text failed")
    applied: list[bool] = Field(description="false where nothing was selected and A1 was taken instead")
    token_share: list[float] = Field(description="share of the tokens that carry weight")
    status: list[str]
    reason: list[str | None] = Field(description="why a text failed, null where it did not")


class ModelAnswer(StrictModel):
    """The shape of a model, from its configuration alone."""

    revision: str | None
    num_blocks: int
    width: int
    window: int | None = Field(description="longest input in tokens, null where the model names none")
