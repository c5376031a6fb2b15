"""Bodies and responses of the HTTP verbs."""

from typing import Annotated, Any

import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from poolbench.concepts import CONCEPTS
from poolbench.config import StrictModel
from poolbench.contracts.bounds import PRINTABLE, ArtifactKey, Label, ModelName, Name, Revision, Subfolder, Whole
from poolbench.contracts.keys import digest
from poolbench.contracts.tables import PASSAGES, table_from_rows
from poolbench.steps.local import PASSAGES as PASSAGES_STEP
from poolbench.steps.local import TABLE, PassagesParams
from poolbench.steps.scorer import TrainParams

MAX_TEXTS = 10_000
#: A scorer: its concept, `concept@base`, its id, the id or folder it was imported from, or its artifact key.
ScorerName = Annotated[str, Field(min_length=1, max_length=1_200, pattern=PRINTABLE)]
Text = Annotated[str, Field(max_length=100_000)]


class ScoreRequest(StrictModel):
    """Texts to score, and by what.

    A scorer is named by its concept, as `concept@base`, by the id or folder it was imported from, by its id
    `concept@base:digest`, or by its artifact key. A name that fits several means the one that a request made last,
    and without one the one that a run made first. `GET /scorer/scorers` lists them. Give `scorer`, or `scorers` for
    several at once: those on one base share a pass.
    """

    texts: list[Text] = Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)
    scorer: ScorerName | None = None
    scorers: list[ScorerName] | None = Field(default=None, min_length=1, max_length=64)

    @field_validator("texts")
    @classmethod
    def _not_empty(cls, texts: list[str]) -> list[str]:
        if empty := [index for index, text in enumerate(texts) if not text.strip()]:
            raise ValueError(f"texts {', '.join(map(str, empty[:5]))} are empty: nothing to score")
        return texts

    @model_validator(mode="after")
    def _one_way(self) -> "ScoreRequest":
        if (self.scorer is None) == (self.scorers is None):
            raise ValueError("give either scorer or scorers")
        return self


class TrainPassage(StrictModel):
    """One passage: label 1 expresses the concept, 0 does not.

    `doc_id` and `pair_id` keep passages of one document, and a passage and its rewrite, on one side of
    the validation split.
    """

    text: Text = Field(min_length=1)
    label: Whole = Field(ge=0, le=1)
    doc_id: Name | None = None
    pair_id: Name | None = None


class TrainRequest(StrictModel):
    """The texts of a training: passages in the body, or the key of a PASSAGES artifact; and TrainParams."""

    params: TrainParams
    passages: list[TrainPassage] = Field(default_factory=list, max_length=MAX_TEXTS, fail_fast=True)
    passages_key: ArtifactKey | None = None

    @model_validator(mode="after")
    def _one_source(self) -> "TrainRequest":
        if bool(self.passages) == (self.passages_key is not None):
            raise ValueError("give either passages or passages_key")
        return self


class ImportRequest(StrictModel):
    """A published classifier to take as the scorer of one concept.

    Attributes:
        source: Hugging Face id, or a folder that requests may name.
        subfolder: Place inside; `{concept}` stands for the concept's id. Empty: the root.
        positive_label: Label, or index of it, that means the concept; needed where there are several.
        tokenizer: Base whose tokenizer is used, if the classifier has none.
        passages: To calibrate on; without passages the probabilities are not calibrated.
        passages_key: The same, as an artifact of split `scorer`.
    """

    concept: Name
    source: ModelName
    revision: Revision | None = None
    subfolder: Subfolder = "{concept}"
    positive_label: Label | None = None
    tokenizer: ModelName | None = None
    passages: list[TrainPassage] = Field(default_factory=list, max_length=MAX_TEXTS, fail_fast=True)
    passages_key: ArtifactKey | None = None

    @model_validator(mode="after")
    def _at_most_one_source(self) -> "ImportRequest":
        if self.passages and self.passages_key is not None:
            raise ValueError("give passages or passages_key, not both")
        return self


def request_passages(concept: str, rows: list[dict[str, Any]]) -> tuple[str, pa.Table]:
    """Return the passages of a request as PASSAGES of split `scorer`, after the key that their content determines."""
    params = PassagesParams(concept=concept, split="scorer", rows=digest(rows))
    key = PASSAGES_STEP.key(TABLE(), params, {}, restricted=CONCEPTS.get(concept).sensitive)
    names = [f"request/{digest(rows, 8)}-{index}" for index in range(len(rows))]
    filled = [
        {**row, "passage_id": name, "doc_id": row["doc_id"] or name, "concept": concept, "split": "scorer"}
        for name, row in zip(names, rows, strict=True)
    ]
    return key, table_from_rows(filled, PASSAGES)


class GateVerdict(StrictModel):
    """The verdict of all gates that judged a scorer: one for each model whose continuations it was tried on."""

    passed: bool = Field(description="false where one of them failed; D2 and D3 are null then")
    reason: str | None = Field(description="why it failed")


class ScoredTexts(StrictModel):
    """P(concept) of each text, by one scorer."""

    scorer: str = Field(description="artifact key of the scorer")
    concept: str
    gate: GateVerdict | None = Field(description="null for a scorer that no run has judged")
    scores: list[float]


class ScoredByMany(StrictModel):
    """The same by each of several scorers."""

    scorers: list[ScoredTexts]


class ListedScorer(StrictModel):
    """A scorer that requests can name. Figures that it does not have are left out."""

    id: str
    concept: str
    base: str
    scorer: str = Field(description="artifact key")
    default: bool = Field(description="whether the name of its concept means this one")
    made_at: str = Field(description="date and time, ISO 8601")
    status: str
    kind: str | None = Field(None, description="head, full or import")
    auroc: float | None = None
    ece_after: float | None = None
    brier_after: float | None = None
    reason: str | None = None
    note: str | None = None


class ScorerList(StrictModel):
    """All scorers of the store."""

    scorers: list[ListedScorer]


class EpochReport(StrictModel):
    """One pass over the windows."""

    train_loss: float
    validation_auroc: float
    validation_nll: float


class ScorerReport(StrictModel):
    """Figures on held-out windows. Those that a scorer does not have are left out."""

    temperature: float
    calibrated: bool
    auroc: float | None
    auroc_ci: tuple[float | None, float | None] | None = None
    ece_before: float | None = None
    ece_after: float | None = None
    brier_before: float | None = None
    brier_after: float | None = None
    reason: str | None = Field(None, description="why there are no figures")
    num_train: int | None = None
    num_validation: int | None = None
    best_epoch: int | None = None
    epochs: list[EpochReport] | None = None
    positive_label: str | None = Field(None, description="label of an imported classifier that means the concept")
    note: str | None = None


class MadeScorer(StrictModel):
    """A scorer that was trained or imported, and is now its concept's latest."""

    id: str | None = Field(None, description="name of an imported scorer, for requests")
    scorer: str = Field(description="artifact key")
    concept: str
    report: ScorerReport
