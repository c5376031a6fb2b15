"""Ad-hoc requests: vectors in the body, figures in the answer."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from poolbench.directions import DirectionContext, compute_direction
from poolbench.errors import InputError
from poolbench_prober.config import ProbeParams
from poolbench_prober.core import probe_cell
from poolbench_prober.corpus import Passages, matched_pairs
from poolbench_prober.design import Design
from poolbench_prober.folds import connected_groups
from poolbench_prober.solver import fit_probes
from poolbench_prober.vectors import PooledVectors


class _Labelled(BaseModel):
    """Vectors with binary labels."""

    model_config = ConfigDict(extra="forbid")

    vectors: list[list[float]] = Field(min_length=2, description="n vectors of one width")
    labels: list[int] = Field(description="1 positive, 0 negative, one a vector")
    pairs: list[str | None] | None = Field(None, description="matched pair of each vector, null for none")

    def matrix(self) -> np.ndarray:
        """The vectors [n, D].

        Raises:
            InputError: If widths, lengths or labels are wrong.
        """
        widths = {len(vector) for vector in self.vectors}
        if len(widths) != 1 or 0 in widths:
            raise InputError(f"vectors must share one width of at least 1; got the widths {sorted(widths)[:5]}")
        for name, column in (("labels", self.labels), ("pairs", self.pairs)):
            if column is not None and len(column) != len(self.vectors):
                raise InputError(f"{name} has {len(column)} entries for {len(self.vectors)} vectors; send one each")
        if set(self.labels) - {0, 1}:
            raise InputError(f"labels must be 0 or 1, got {sorted(set(self.labels))[:5]}")
        return np.array(self.vectors, dtype=np.float64)


class ProbeRequest(_Labelled):
    """Vectors to probe."""

    groups: list[str | int] | None = Field(None, description="rows with one group never part; own group if absent")
    domains: list[str] | None = Field(None, description="domain of each vector, for leave-one-domain-out")
    params: ProbeParams = Field(default_factory=lambda: ProbeParams.parse({}))


class ProbeAnswer(BaseModel):
    """D1 figures and out-of-fold log-odds."""

    measures: list[dict[str, Any]]
    scores: list[float | None]
    folds: list[int]


class DirectionRequest(_Labelled):
    """Vectors to build a direction from."""

    method: str = Field("C1", description="construction: C1, C2, C3, C4, LDA, C1_centred")
    seed: int = Field(0, ge=0)


class DirectionAnswer(BaseModel):
    """A unit direction and the norm it had."""

    direction: list[float]
    raw_norm: float
    method: str


def answer_probe(request: ProbeRequest) -> ProbeAnswer:
    """D1 of the request's vectors.

    Raises:
        InputError: If the request is inconsistent.
        CellError: If the labels cannot be probed at all.
    """
    vectors = PooledVectors.from_matrix(request.matrix())
    passages = _passages(request)
    design = Design.build(passages, None, request.params)
    if design.error is not None:
        raise design.error
    result = probe_cell(design, vectors, None, request.params)
    keep = (
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
    measures = [{name: row[name] for name in keep} for row in (m.to_row() for m in result.measures)]
    score_of = {row["passage_id"]: row["score"] for row in result.scores}
    scores = [score_of.get(passage_id) for passage_id in passages.ids]
    return ProbeAnswer(measures=measures, scores=scores, folds=design.folds.tolist())


def answer_direction(request: DirectionRequest) -> DirectionAnswer:
    """One direction of the request's vectors.

    Raises:
        InputError: If the request is inconsistent or a vector is not finite.
        UnknownNameError: If the method is not registered.
        CellError: If the direction cannot be computed.
    """
    matrix, labels = request.matrix(), np.array(request.labels)
    if not np.isfinite(matrix).all():
        raise InputError("vectors must be finite")
    weights = None
    if request.method == "C3" and len(np.unique(labels)) == 2:
        fit = fit_probes(matrix, labels[:, None], np.ones(1))
        weights = fit.weights_DK[:, 0] if fit.converged[0] else None
    pairs = matched_pairs(request.pairs or [None] * len(labels), labels)
    found = compute_direction(request.method, DirectionContext(matrix, labels, pairs, request.seed, weights))
    return DirectionAnswer(direction=found.vector.tolist(), raw_norm=found.raw_norm, method=found.id)


def _passages(request: ProbeRequest) -> Passages:
    count = len(request.vectors)
    for name, column in (("groups", request.groups), ("domains", request.domains)):
        if column is not None and len(column) != count:
            raise InputError(f"{name} has {len(column)} entries for {count} vectors; send one each")
    labels = np.array(request.labels, dtype=np.int8)
    pairs = request.pairs or [None] * count
    groups = [str(row) for row in range(count)] if request.groups is None else list(map(str, request.groups))
    return Passages(
        ids=tuple(str(row) for row in range(count)),
        labels=labels,
        groups=connected_groups(pairs, groups),
        domains=np.array(request.domains or ["all"] * count),
        pairs_P2=matched_pairs(pairs, labels),
        paired=request.pairs is not None,
        texts=("",) * count,
    )
