"""Ad-hoc requests over HTTP and their responses."""

from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from poolbench.contracts import bounds
from poolbench.errors import InputError
from poolbench.steps.prober import ProbeParams, TaskParams
from poolbench_prober.cost import REQUEST

Task = Literal["concept", "classification", "regression"]
#: Numbers of all vectors of one request.
MAX_NUMBERS = 25_000_000
#: Rows of one group stay together.
Groups = Annotated[list[bounds.Label | bounds.Number], Field(max_length=bounds.MAX_ROWS, fail_fast=True)]
#: 1 positive, 0 negative.
Class = Annotated[int, Field(strict=True, ge=0, le=1)]


class _Vectors(BaseModel):
    """Vectors, and columns of the same length."""

    model_config = ConfigDict(extra="forbid")

    vectors: list[bounds.Vector | None] = Field(
        min_length=2, max_length=bounds.MAX_ROWS, fail_fast=True, description="n vectors of one width; null for none"
    )
    pairs: bounds.LabelsOrNone | None = Field(None, description="matched pair of each vector, null for none")

    def require_affordable(self) -> None:
        """Raise TooLargeError, with the number and the limit, before a matrix is made of too many numbers."""
        numbers = sum(len(vector) for vector in self.vectors if vector is not None)
        bounds.require_at_most("numbers in vectors", numbers, MAX_NUMBERS, REQUEST.remedy)

    def matrix(self) -> np.ndarray:
        """Return the vectors [n, D], with NaN for a null vector. Raise InputError if widths or lengths are wrong."""
        widths = {len(vector) for vector in self.vectors if vector is not None}
        if len(widths) != 1 or 0 in widths:
            raise InputError(f"vectors must share one width of at least 1; got the widths {sorted(widths)[:5]}")
        columns = {
            name: getattr(self, name)
            for name in ("labels", "pairs", "groups", "domains", "splits", "words")
            if hasattr(self, name)
        }
        for name, column in columns.items():
            if column is not None and len(column) != len(self.vectors):
                raise InputError(f"{name} has {len(column)} entries for {len(self.vectors)} vectors; send one each")
        nothing = [np.nan] * widths.pop()
        return np.array([nothing if vector is None else vector for vector in self.vectors], dtype=np.float64)


class ProbeRequest(_Vectors):
    """Vectors to probe: for a binary concept, or for another task."""

    labels: list[bounds.Number | bounds.Component | bounds.Label] = Field(
        max_length=bounds.MAX_ROWS, fail_fast=True, description="0 and 1, classes, or real values; one a vector"
    )
    task: Task | None = Field(None, description="concept (D1), classification or regression; by default by the labels")
    splits: bounds.Labels | None = Field(
        None, description="train, dev or test of each vector, for tasks; drawn if absent"
    )
    words: bounds.Labels | None = Field(None, description="word type of each vector, for control labels per type")
    groups: Groups | None = Field(None, description="rows with one group never part; own group if absent")
    domains: bounds.Labels | None = Field(None, description="domain of each vector, for leave-one-domain-out")
    params: ProbeParams = Field(default_factory=ProbeParams, description="of D1")
    task_params: TaskParams = Field(default_factory=TaskParams, description="of other tasks")

    @property
    def kind(self) -> Task:
        """Return the named task, else a task inferred from the labels: 0 and 1, names or whole numbers, real values."""
        if self.task is not None:
            return self.task
        if all(label in (0, 1) for label in self.labels):
            return "concept"
        real = any(isinstance(label, float) and not label.is_integer() for label in self.labels)
        return "regression" if real else "classification"


class MeasureAnswer(BaseModel):
    """One figure, with its interval; the value is null where the status is not ok."""

    model_config = ConfigDict(extra="forbid")

    metric: str
    direction: str | None
    value: float | None
    ci_low: float | None
    ci_high: float | None
    n: int | None = Field(description="number of instances")
    num_groups: int | None
    status: str
    reason: str | None
    params: str = Field(description="what the figure depends on, as JSON")


class ProbeAnswer(BaseModel):
    """Figures of a task; of a concept also out-of-fold log-odds and folds."""

    task: Task
    measures: list[MeasureAnswer]
    scores: list[float | None]
    folds: list[int] = Field(description="empty for other tasks, and where there are too few groups for D1")


class DirectionRequest(_Vectors):
    """Vectors to build a direction from."""

    labels: list[Class] = Field(
        max_length=bounds.MAX_ROWS, fail_fast=True, description="1 positive, 0 negative, one a vector"
    )
    method: bounds.Name = Field("C1", description="construction: C1, C2, C3, C4, LDA, C1_centred")
    seed: bounds.Seed = 0


class DirectionAnswer(BaseModel):
    """A unit direction and the norm it had."""

    direction: list[float]
    raw_norm: float
    method: str
