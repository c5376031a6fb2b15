"""Answers to ad-hoc requests, from the same functions as those of tasks."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from poolbench.contracts.measures import Measure
from poolbench.contracts.tables import INSTANCES
from poolbench.directions import DirectionContext, compute_direction
from poolbench.directions.pairs import matched_pairs
from poolbench.errors import InputError
from poolbench.statistics.folds import connected_groups
from poolbench.statuses import Status
from poolbench.steps.prober import TaskParams
from poolbench_prober import cost
from poolbench_prober.d1.core import probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.inputs.corpus import Passages, binary_labels
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.probing import Targets, TaskProbes, task_measures
from poolbench_prober.requests import DirectionAnswer, DirectionRequest, MeasureAnswer, ProbeAnswer, ProbeRequest
from poolbench_prober.solver.fits import fit_probes


def answer_probe(request: ProbeRequest) -> ProbeAnswer:
    """Compute D1 or another task on the vectors of a request. Raise InputError or CellError."""
    request.require_affordable()
    vectors = PooledVectors.from_matrix(request.matrix())
    if request.kind != "concept":
        _require_own_params(request)
        params, targets = _task_params(request), _targets(request)
        classes = 1 if targets.is_regression else len(np.unique(targets.values))
        cost.of_task(len(targets.ids), vectors.width, classes, params).require(cost.REQUEST)
        return ProbeAnswer(
            task=request.kind,
            measures=_shown(task_measures(TaskProbes.of(targets, vectors, params))),
            scores=[],
            folds=[],
        )
    passages = _passages(request)
    _require_own_params(request)
    cost.of_concept(len(passages.ids), vectors.width, passages.domains, request.params).require(cost.REQUEST)
    design = Design.build(passages, None, request.params)
    if design.error is not None and design.error.status != Status.TOO_FEW:  # too few are nulls with the reason
        raise design.error
    result = probe_cell(design, vectors, None, request.params)
    score_of = {row["passage_id"]: row["score"] for row in result.scores}
    scores = [score_of.get(passage_id) for passage_id in passages.ids]
    measures = result.measures
    if design.error is None:
        reason = "control words are taken from texts, and these are vectors without texts"
        measures = [replace(m, reason=reason) if m.metric == "d1.selectivity" else m for m in measures]
    folds = [] if design.error is not None else design.folds.tolist()
    return ProbeAnswer(task="concept", measures=_shown(measures), scores=scores, folds=folds)


def _require_own_params(request: ProbeRequest) -> None:
    """Raise InputError if the request has parameters of the other kind of task."""
    other, expected_field = ("task_params", "params") if request.kind == "concept" else ("params", "task_params")
    if other in request.model_fields_set:
        raise InputError(f"{other} do not belong to a {request.kind}; its parameters are called {expected_field}")


def _task_params(request: ProbeRequest) -> TaskParams:
    """Return the parameters; words imply control labels per type unless another control is named."""
    params = request.task_params
    if request.words is None:
        return params
    if "control" not in params.model_fields_set:
        return params.model_copy(update={"control": "word_type"})
    if params.control != "word_type":
        raise InputError(f"words are read by control word_type only; task_params.control is {params.control}")
    return params


def _shown(measures: Iterable[Measure]) -> list[MeasureAnswer]:
    """Return the columns of measures that an answer holds."""
    rows = (measure.to_row() for measure in measures)
    return [MeasureAnswer(**{name: row[name] for name in MeasureAnswer.model_fields}) for row in rows]


def answer_direction(request: DirectionRequest) -> DirectionAnswer:
    """Compute one direction from the vectors of a request.

    Raises:
        InputError: If the request is inconsistent or a vector is not finite.
        UnknownNameError: If the method is not registered.
        CellError: If the direction cannot be computed.
    """
    request.require_affordable()
    matrix, labels = request.matrix(), binary_labels(request.labels)
    if not np.isfinite(matrix).all():
        raise InputError("vectors must be finite")
    weights = None
    if request.method == "C3" and len(np.unique(labels)) == 2:
        fit = fit_probes(matrix, labels[:, None], np.ones(1))
        weights = fit.weights_DK[:, 0] if fit.converged[0] else None
    pairs = matched_pairs(request.pairs or [None] * len(labels), labels)
    direction = compute_direction(request.method, DirectionContext(matrix, labels, pairs, request.seed, weights))
    return DirectionAnswer(direction=direction.vector.tolist(), raw_norm=direction.raw_norm, method=direction.id)


def _targets(request: ProbeRequest) -> Targets:
    """Return the instances of the request, checked like those of a task (InputError). A pair is a group."""
    count, regression = len(request.labels), request.kind == "regression"
    if request.domains is not None:
        raise InputError(f"domains belong to the task concept; this one is a {request.kind}")
    if regression and any(isinstance(label, str) for label in request.labels):
        raise InputError("a regression needs numbers as labels")
    nothing = [None] * count
    # 1 and 1.0 are the same class.
    names = [str(int(x) if isinstance(x, float) and x.is_integer() else x) for x in request.labels]
    ids = [str(row) for row in range(count)]
    columns = {
        "instance_id": ids,
        "first": [[name] for name in ids],
        "second": nothing,
        "label": nothing if regression else names,
        "value": [_real(label) for label in request.labels] if regression else nothing,
        "split": request.splits or nothing,
        "group": list(map(str, _groups(request))),
        "word": request.words or nothing,
    }
    return replace(Targets.from_table(pa.table(columns, schema=INSTANCES)), parts=None)


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
    """Return connected components of pair and group; a row without either is its own group."""
    nothing = [None] * len(request.vectors)
    groups = nothing if request.groups is None else list(map(str, request.groups))
    return connected_groups(request.pairs or nothing, groups)
