"""Request and response bodies of the two verbs, and their limits."""

from typing import Annotated, Literal

from pydantic import Field

from poolbench.config import StrictModel
from poolbench.contracts.bounds import MAX_CHARACTERS, MAX_ROWS, Component, Flag, Name, Text, Vector, Whole
from poolbench.steps.base import MAX_STRATEGIES, SinkParams, StrategyParam
from poolbench.steps.pooler import SHIPPED_PIPELINE

#: Installed spaCy packages that may be named instead; others would let a message import any module.
PACKAGED_PIPELINES = ("en_core_web_sm", "en_core_web_md", "en_core_web_lg", "en_core_web_trf")
#: Texts of one HTTP request; larger work belongs in the queue.
MAX_TEXTS = 1_000
#: Characters that one HTTP request has parsed: the parser holds about 1 GB for every 100,000 words.
MAX_REQUEST_CHARACTERS = 1_000_000
#: Characters whose words one HTTP request has counted.
MAX_IDF_CHARACTERS = 10_000_000
#: Characters that one task has parsed, in portions.
MAX_TASK_CHARACTERS = 200_000_000
#: Numbers in the hidden states of one HTTP request.
MAX_STATES = 20_000_000

Texts = Annotated[list[Text], Field(max_length=MAX_TEXTS, fail_fast=True)]
PER_TOKEN = Field(max_length=MAX_ROWS, fail_fast=True)
#: Where a token starts or ends in its text.
Place = Annotated[int, Field(strict=True, ge=0, le=MAX_CHARACTERS)]


class AnnotateRequest(StrictModel):
    """Body of `POST /annotate`; without `idf_texts` document frequencies come from `texts`."""

    texts: Texts = Field(min_length=1)
    idf_texts: Texts | None = None
    pipeline: Name = SHIPPED_PIPELINE
    num_keywords: Whole = Field(default=10, ge=1, le=10_000)


class PoolRequest(SinkParams):
    """Body of `POST /pool`: the hidden states of one passage, [T][D].

    Attributes:
        strategies: Strategy ids, or ids with parameters.
        text: The passage; with `offsets` it is annotated for the linguistic strategies.
        offsets: Character range of each token in `text`, [T][2].
        special: True at tokens that the tokenizer added, [T].
        inflow: Attention inflow of each token, [T], for S1.
    """

    hidden_states: list[Vector] = Field(min_length=1, max_length=MAX_ROWS, fail_fast=True)
    strategies: list[Name | StrategyParam] = Field(min_length=1, max_length=MAX_STRATEGIES)
    text: Text | None = None
    offsets: Annotated[list[tuple[Place, Place]], PER_TOKEN] | None = None
    special: Annotated[list[Flag], PER_TOKEN] | None = None
    inflow: Annotated[list[Component], PER_TOKEN] | None = None
    pipeline: Name = SHIPPED_PIPELINE


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
    num_sinks: int = Field(description="attention sinks of the passage")
    num_left_out: int = Field(description="sinks that the strategy left out")
    status: str
    reason: str | None


class PoolAnswer(StrictModel):
    """One vector per strategy."""

    vectors: list[PooledVector]
