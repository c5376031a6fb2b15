"""AUROC with a bootstrap over groups, as every part of the scorer's report uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from poolbench.statistics.resampling import group_weights, percentile_interval

CI_METHOD = "bootstrap over groups, percentile"


class Auroc(NamedTuple):
    """An AUROC with its interval; ``interval`` is None where too few resamples hold both classes."""

    value: float
    interval: tuple[float, float] | None
    num_groups: int


def weighted_auroc(scores: np.ndarray, labels: np.ndarray, weights_RN: np.ndarray) -> np.ndarray:
    """P(positive above negative) + half of the ties, under each row of weights [R]; NaN without a class."""
    positive, negative = labels == 1, labels != 1
    above = scores[positive][:, None] - scores[negative][None, :]
    wins_PN = (above > 0) + 0.5 * (above == 0)
    weights_RP, weights_RQ = weights_RN[:, positive].astype(float), weights_RN[:, negative].astype(float)
    won = ((weights_RP @ wins_PN) * weights_RQ).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return won / (weights_RP.sum(axis=1) * weights_RQ.sum(axis=1))


def grouped_auroc(
    scores: np.ndarray, labels: np.ndarray, groups: np.ndarray, *, num_bootstrap: int, seed: int
) -> Auroc:
    """AUROC of ``scores`` [n] with a percentile interval over ``groups`` [n]."""
    weights_RN = group_weights(groups, num_bootstrap, seed)
    value = float(weighted_auroc(scores, labels, np.ones((1, len(scores))))[0])
    samples = weighted_auroc(scores, labels, weights_RN)
    return Auroc(value, percentile_interval(samples), int(np.unique(groups).size))


def link_groups(*columns: Sequence[str | None]) -> np.ndarray:
    """Group of each passage [n]: connected components of equal values in any column; None links nothing."""
    num_rows = len(columns[0])
    rows: list[int] = []
    nodes: list[int] = []
    known: dict[tuple[int, str], int] = {}
    for position, column in enumerate(columns):
        for row, value in enumerate(column):
            if value is not None:
                rows.append(row)
                nodes.append(num_rows + known.setdefault((position, value), len(known)))
    size = num_rows + len(known)
    edges = coo_matrix((np.ones(len(rows)), (rows, nodes)), shape=(size, size))
    return connected_components(edges, directed=False)[1][:num_rows]
