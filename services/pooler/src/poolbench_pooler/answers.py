"""What the pooler's verbs answer, for the OpenAPI document and for readers of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from poolbench.config import StrictModel


class Annotation(StrictModel):
    """One text, split into words; every list has one entry per word."""

    passage_id: str = Field(description="index of the text in the request")
    word_start: list[int] = Field(description="first character of the word")
    word_end: list[int] = Field(description="character after the word")
    upos: list[str] = Field(description="universal part of speech")
    dep: list[str] = Field(description="dependency relation, in the scheme dep_scheme")
    head: list[int] = Field(description="index of the word that it depends on; a root points at itself")
    lemma: list[str]
    entity: list[str] = Field(description="entity type, empty for none")
    sentence: list[int]
    clause: list[int]
    keyword: list[bool] = Field(description="whether it is among the words of highest TF-IDF")


class AnnotateAnswer(StrictModel):
    """Annotations of texts, and what they were made with."""

    annotations: list[Annotation]
    idf_source: Literal["texts", "idf_texts"] = Field(description="texts that document frequencies come from")
    pipeline: str
    pipeline_version: str
    dep_scheme: str


class PooledVector(StrictModel):
    """The vector of one strategy, or why there is none."""

    strategy: str
    vector: list[float] | None = Field(description="null where the status is not ok")
    applied: bool = Field(description="false where nothing was selected and A1 was taken instead")
    token_share: float = Field(description="share of the tokens that carry weight")
    status: str
    reason: str | None


class PoolAnswer(StrictModel):
    """One vector per strategy."""

    vectors: list[PooledVector]
