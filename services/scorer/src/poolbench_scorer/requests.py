"""Bodies of the HTTP verbs."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from poolbench.config import StrictModel

MAX_TEXTS = 10_000
Text = Annotated[str, Field(max_length=100_000)]


class ScoreRequest(StrictModel):
    """Texts to score, and by what: a concept (its latest scorer) or an artifact key."""

    texts: list[Text] = Field(min_length=1, max_length=MAX_TEXTS)
    scorer: str = Field(min_length=1)


class TrainPassage(StrictModel):
    """One passage: label 1 expresses the concept, 0 does not.

    ``doc_id`` and ``pair_id`` keep passages of one document, and a passage and its rewrite, on one side of
    the validation split.
    """

    text: Text = Field(min_length=1)
    label: int = Field(ge=0, le=1)
    doc_id: str | None = None
    pair_id: str | None = None


class TrainRequest(StrictModel):
    """What to train on: passages in the body, or the key of a PASSAGES artifact; TrainParams."""

    params: dict[str, Any]
    passages: list[TrainPassage] = Field(default_factory=list, max_length=MAX_TEXTS)
    passages_key: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> TrainRequest:
        if bool(self.passages) == (self.passages_key is not None):
            raise ValueError("give either passages or passages_key")
        return self
