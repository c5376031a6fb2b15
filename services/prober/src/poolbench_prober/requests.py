"""Ad-hoc requests: vectors in the body, figures in the answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from poolbench.contracts.tables import PROBE_TARGETS
from poolbench.corpora.groups import connected_groups
from poolbench.directions import DirectionContext, compute_direction
from poolbench.errors import InputError
from poolbench.suites import Measure
from poolbench_prober.config import ProbeParams, TaskParams
from poolbench_prober.core import probe_cell
from poolbench_prober.corpus import Passages, binary_labels, matched_pairs
from poolbench_prober.design import Design
from poolbench_prober.solver import fit_probes
from poolbench_prober.tasks import Targets, task_measures
from poolbench_prober.vectors import PooledVectors

Task = Literal["concept", "classification", "regression"]
_COLUMNS = (
    "metric",
    "direction",
    "value",
    "ci_low",
    "ci_high",
    "n",
    "num_groups",
    "status",
    "reason",
    "params",
)


class _Vectors(BaseModel):
    """Vectors, and columns of the same length."""

    model_config = ConfigDict(extra="forbid")

    vectors: list[list[float] | None] = Field(min_length=2, description="n vectors of one width; null for none")
    pairs: list[str | None] | None = Field(None, description="matched pair of each vector, null for none")

    def matrix(self) -> np.ndarray:
        """The vectors [n, D]; a null is a row of NaN.

        Raises:
            InputError: If widths or lengths are wrong.
        """
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

    labels: list[int | float | str] = Field(description="0 and 1, classes, or real values; one a vector")
    task: Task | None = Field(None, description="concept (D1), classification or regression; told from the labels")
    splits: list[str] | None = Field(None, description="train, dev or test of each vector, for tasks; drawn if absent")
    words: list[str] | None = Field(None, description="word type of each vector, for control labels per type")
    groups: list[str | int] | None = Field(None, description="rows with one group never part; own group if absent")
    domains: list[str] | None = Field(None, description="domain of each vector, for leave-one-domain-out")
    params: ProbeParams = Field(default_factory=lambda: ProbeParams.parse({}), description="of D1")
    task_params: TaskParams = Field(default_factory=lambda: TaskParams.parse({}), description="of other tasks")

    @property
    def kind(self) -> Task:
        """The task that was named, else told from the labels: 0 and 1, names or whole numbers, real values."""
        if self.task is not None:
            return self.task
        if all(label in (0, 1) for label in self.labels):
            return "concept"
        real = any(isinstance(label, float) and not label.is_integer() for label in self.labels)
        return "regression" if real else "classification"


class ProbeAnswer(BaseModel):
    """Figures of a task; of a concept also out-of-fold log-odds and folds."""

    task: Task
    measures: list[dict[str, Any]]
    scores: list[float | None]
    folds: list[int]


class DirectionRequest(_Vectors):
    """Vectors to build a direction from."""

    labels: list[int] = Field(description="1 positive, 0 negative, one a vector")
    method: str = Field("C1", description="construction: C1, C2, C3, C4, LDA, C1_centred")
    seed: int = Field(0, ge=0)


class DirectionAnswer(BaseModel):
    """A unit direction and the norm it had."""

    direction: list[float]
    raw_norm: float
    method: str


def answer_probe(request: ProbeRequest) -> ProbeAnswer:
    """D1 of the request's vectors, or the figures of another task.

    Raises:
        InputError: If the request is inconsistent.
        CellError: If the labels cannot be probed at all.
    """
    vectors = PooledVectors.from_matrix(request.matrix())
    if request.kind != "concept":
        _require_own_params(request)
        measures = task_measures(_targets(request), vectors, _task_params(request))
        return ProbeAnswer(task=request.kind, measures=_told(measures), scores=[], folds=[])
    passages = _passages(request)
    _require_own_params(request)
    design = Design.build(passages, None, request.params)
    if design.error is not None:
        raise design.error
    result = probe_cell(design, vectors, None, request.params)
    score_of = {row["passage_id"]: row["score"] for row in result.scores}
    scores = [score_of.get(passage_id) for passage_id in passages.ids]
    return ProbeAnswer(task="concept", measures=_told(result.measures), scores=scores, folds=design.folds.tolist())


def _require_own_params(request: ProbeRequest) -> None:
    """Parameters of the other kind of task are refused, not left unread.

    Raises:
        InputError: If there are any.
    """
    other, own = ("task_params", "params") if request.kind == "concept" else ("params", "task_params")
    if other in request.model_fields_set:
        raise InputError(f"{other} do not belong to a {request.kind}; its parameters are called {own}")


def _task_params(request: ProbeRequest) -> TaskParams:
    """The parameters; words are there for control labels per type, unless another control is named.

    Raises:
        InputError: If one is named that reads no words.
    """
    params = request.task_params
    if request.words is None:
        return params
    if "control" not in params.model_fields_set:
        return params.model_copy(update={"control": "word_type"})
    if params.control != "word_type":
        raise InputError(f"words are read by control word_type only; task_params.control is {params.control}")
    return params


def _told(measures: Iterable[Measure]) -> list[dict[str, Any]]:
    """The columns of measures that an answer holds."""
    return [{name: row[name] for name in _COLUMNS} for row in (measure.to_row() for measure in measures)]


def answer_direction(request: DirectionRequest) -> DirectionAnswer:
    """One direction of the request's vectors.

    Raises:
        InputError: If the request is inconsistent or a vector is not finite.
        UnknownNameError: If the method is not registered.
        CellError: If the direction cannot be computed.
    """
    matrix, labels = request.matrix(), binary_labels(request.labels)
    if not np.isfinite(matrix).all():
        raise InputError("vectors must be finite")
    weights = None
    if request.method == "C3" and len(np.unique(labels)) == 2:
        fit = fit_probes(matrix, labels[:, None], np.ones(1))
        weights = fit.weights_DK[:, 0] if fit.converged[0] else None
    pairs = matched_pairs(request.pairs or [None] * len(labels), labels)
    found = compute_direction(request.method, DirectionContext(matrix, labels, pairs, request.seed, weights))
    return DirectionAnswer(direction=found.vector.tolist(), raw_norm=found.raw_norm, method=found.id)


def _targets(request: ProbeRequest) -> Targets:
    """The request as PROBE_TARGETS, so that it is checked as a task's targets are; pairs never part, as groups do not.

    Raises:
        InputError: If labels of a regression are no numbers, a split is unknown, or domains are given.
    """
    count, regression = len(request.labels), request.kind == "regression"
    if request.domains is not None:
        raise InputError(f"domains belong to the task concept; this one is a {request.kind}")
    if regression and any(isinstance(label, str) for label in request.labels):
        raise InputError("a regression needs numbers as labels")
    nothing = [None] * count
    columns = {
        "instance_id": [str(row) for row in range(count)],
        "label": nothing if regression else [_class_name(label) for label in request.labels],
        "value": [_real(label) for label in request.labels] if regression else nothing,
        "split": request.splits or nothing,
        "group": list(map(str, _groups(request))),
        "word": request.words or nothing,
    }
    return Targets.from_table(pa.table(columns, schema=PROBE_TARGETS))


def _class_name(label: int | float | str) -> str:
    """One name for one number: 1 and 1.0 are a class."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _real(label: int | float | str) -> float:
    try:
        return float(label)
    except OverflowError:
        raise InputError("a label of a regression is too large for a float; send numbers below 1e308") from None


def _passages(request: ProbeRequest) -> Passages:
    count = len(request.vectors)
    if request.splits is not None or request.words is not None:
        raise InputError("splits and words belong to a classification or regression; this task is a concept")
    labels = binary_labels(request.labels)
    pairs = request.pairs or [None] * count
    return Passages(
        ids=tuple(str(row) for row in range(count)),
        labels=labels,
        groups=_groups(request),
        domains=np.array(request.domains or ["all"] * count),
        pairs_P2=matched_pairs(pairs, labels),
        paired=request.pairs is not None,
        texts=("",) * count,
    )


def _groups(request: ProbeRequest) -> np.ndarray:
    """Connected components of pair and group; a row without either is on its own."""
    nothing = [None] * len(request.vectors)
    groups = nothing if request.groups is None else list(map(str, request.groups))
    return connected_groups(request.pairs or nothing, groups)
