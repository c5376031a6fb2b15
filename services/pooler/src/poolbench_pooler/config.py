"""What the two verbs can be told."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from poolbench.config import StrictModel

SHIPPED_PIPELINE = "annotator"
"""Folder of the shipped pipeline under ``assets/``."""

PACKAGED_PIPELINES = ("en_core_web_sm", "en_core_web_md", "en_core_web_lg", "en_core_web_trf")
"""Installed spaCy packages that may be named instead; others would let a message import any module."""

MAX_TEXTS = 1_000
"""Texts of one HTTP request; larger work belongs in the queue."""

MAX_CHARACTERS = 1_000_000
"""Characters of one text: the parser holds about 1 GB for every 100,000 words."""


class AnnotateParams(StrictModel):
    """Parameters of ``pooler.annotate``.

    Attributes:
        pipeline: Name of an asset folder, or one of `PACKAGED_PIPELINES`.
        pipeline_version: Version that the pipeline must have, where results are to depend on it.
        num_keywords: Words of highest TF-IDF that are flagged in each passage.
    """

    pipeline: str = SHIPPED_PIPELINE
    pipeline_version: str | None = None
    num_keywords: int = Field(default=10, ge=1)


class StrategyRequest(StrictModel):
    """One pooling strategy and the parameters that differ from its defaults."""

    id: str
    params: dict[str, Any] = Field(default_factory=dict)


class AnnotateRequest(StrictModel):
    """Body of ``POST /annotate``; without ``idf_texts`` document frequencies come from ``texts``."""

    texts: list[str] = Field(min_length=1, max_length=MAX_TEXTS)
    idf_texts: list[str] | None = Field(default=None, max_length=MAX_TEXTS)
    pipeline: str = SHIPPED_PIPELINE
    num_keywords: int = Field(default=10, ge=1)


class PoolRequest(StrictModel):
    """Body of ``POST /pool``: the hidden states of one passage, [T][D].

    Attributes:
        strategies: Strategy ids, or ids with parameters.
        text: The passage; with ``offsets`` it is annotated for the linguistic strategies.
        offsets: Character range of each token in ``text``, [T][2].
        special: True at tokens that the tokenizer added, [T].
        inflow: Attention inflow of each token, [T], for S1.
    """

    hidden_states: list[list[float]] = Field(min_length=1)
    strategies: list[str | StrategyRequest] = Field(min_length=1)
    text: str | None = None
    offsets: list[tuple[int, int]] | None = None
    special: list[bool] | None = None
    inflow: list[float] | None = None
    pipeline: str = SHIPPED_PIPELINE
