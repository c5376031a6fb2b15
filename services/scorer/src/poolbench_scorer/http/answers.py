"""What the scorer's verbs answer, for the OpenAPI document and for readers of it."""

from __future__ import annotations

from pydantic import Field

from poolbench.config import StrictModel


class ScoredTexts(StrictModel):
    """P(concept) of each text, by one scorer."""

    scorer: str = Field(description="artifact key of the scorer")
    concept: str
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
