"""Cosines of the directions of two strategies."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import error_of, vector_matrix
from poolbench.errors import CellError
from poolbench.statuses import Status


def direction_vector(table: pa.Table, direction: str) -> np.ndarray:
    """Return one construction's direction in a DIRECTIONS table, float64 [D].

    Raise CellError with the status of a direction that could not be computed; `failed` if the table lacks it.
    """
    ids = table["direction_id"].to_pylist()
    if direction not in ids:
        raise CellError(Status.FAILED, f"no direction {direction} among {', '.join(ids)}")
    row = ids.index(direction)
    if not table["vector"][row].is_valid:
        null_row = table.slice(row, 1).drop_columns(["vector"]).to_pylist()[0]
        raise error_of(null_row, f"direction {direction} could not be computed")
    return vector_matrix(table["vector"])[row].astype(np.float64)


#: Mean cosine from which two strategies' directions are reported as one.
SAME = 0.99


def cosine_rows(tables: Mapping[str, pa.Table | CellError], direction: str = "C1") -> list[dict[str, Any]]:
    """Return the cosine of every pair of strategies' directions, for one construction, concept and layer.

    Each pair of sorted names is computed on its own, so that a row does not depend on the other strategies. `tables`
    holds DIRECTIONS by strategy, or the error that replaced them. If a side has no direction, the cosine is null with
    the status of that side (of the first, if neither has one).
    """
    unit_vectors = {name: _unit(tables[name], direction) for name in sorted(tables)}
    return [
        {"direction": direction, "strategy_a": a, "strategy_b": b, **_cosine(unit_vectors[a], unit_vectors[b], (a, b))}
        for a, b in combinations(unit_vectors, 2)
    ]


def _unit(table: pa.Table | CellError, direction: str) -> np.ndarray | CellError:
    """Return the unit direction [D] in float64 (stored ones are rounded to float32), or the error."""
    if isinstance(table, CellError):
        return table
    try:
        vector = direction_vector(table, direction)
    except CellError as error:
        return error
    return vector / np.linalg.norm(vector)


def _cosine(first: np.ndarray | CellError, second: np.ndarray | CellError, names: tuple[str, str]) -> dict[str, Any]:
    if isinstance(first, CellError):
        return _null(first.status, f"{names[0]}: {first}")
    if isinstance(second, CellError):
        return _null(second.status, f"{names[1]}: {second}")
    if first.shape != second.shape:
        return _null(Status.FAILED, f"directions of widths {len(first)} and {len(second)} cannot be compared")
    return {"cosine": float(np.clip(first @ second, -1, 1)), "status": Status.OK, "reason": None}


def _null(status: Status, reason: str) -> dict[str, Any]:
    return {"cosine": None, "status": status, "reason": reason}


@dataclass(frozen=True)
class CosineBoard:
    """Mean cosine over concepts of each pair of strategies."""

    strategies: list[str]  # S strategies, similar ones next to each other
    mean_SS: np.ndarray  # mean over the concepts in which both have a direction; NaN if none, 1 on the diagonal
    lowest: dict[tuple[str, str], tuple[float, str]]  # lowest cosine and its concept, by pair in either order
    without: dict[str, str]  # status by strategy that has no direction in any concept

    def nearest(self, strategy: str) -> tuple[str, float] | None:
        """Return the most parallel other strategy and their mean cosine; None without a cosine."""
        row = self.strategies.index(strategy)
        others = np.where(np.arange(len(self.strategies)) == row, np.nan, self.mean_SS[row])
        if np.isnan(others).all():
            return None
        best = int(np.nanargmax(others))
        return self.strategies[best], float(others[best])

    def groups(self, at_least: float = SAME) -> list[list[str]]:
        """Return the sets of strategies in which every pair's mean cosine reaches this (complete linkage)."""
        from scipy.cluster.hierarchy import fcluster, linkage

        if len(self.strategies) < 2:
            return []
        marks = fcluster(linkage(_distances(self.mean_SS), "complete"), 1 - at_least + 1e-12, "distance")
        members = [sorted(self.strategies[k] for k in np.flatnonzero(marks == mark)) for mark in dict.fromkeys(marks)]
        return [names for names in members if len(names) > 1]


def cosine_board(rows: Iterable[Mapping[str, Any]]) -> CosineBoard:
    """Average the rows of one layer and construction over concepts; models count as further concepts."""
    pairs: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    missing: list[tuple[str, str, str]] = []
    for row in rows:
        pair = (row["strategy_a"], row["strategy_b"])
        if row["cosine"] is None:
            missing.append((*pair, row["status"]))
        else:
            pairs[pair].append((row["cosine"], row["concept"]))
    strategies = sorted({name for pair in pairs for name in pair})
    means = {pair: float(np.mean([cosine for cosine, _ in cosines])) for pair, cosines in pairs.items()}
    order = _by_similarity(_matrix(strategies, means))
    strategies = [strategies[k] for k in order]
    lowest = {key: min(cosines) for (a, b), cosines in pairs.items() for key in ((a, b), (b, a))}
    return CosineBoard(strategies, _matrix(strategies, means), lowest, _without(strategies, missing))


def _without(strategies: list[str], missing: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """Return the commonest status of each strategy without a cosine, by its pairs with strategies that have one."""
    statuses: dict[str, Counter[str]] = defaultdict(Counter)
    for a, b, status in missing:
        for name, other in ((a, b), (b, a)):
            if name not in strategies and other in strategies:
                statuses[name][status] += 1
    return {name: counts.most_common(1)[0][0] for name, counts in sorted(statuses.items())}


def _matrix(strategies: list[str], means: Mapping[tuple[str, str], float]) -> np.ndarray:
    mean_SS = np.eye(len(strategies))
    for i, j in combinations(range(len(strategies)), 2):
        pair = (strategies[i], strategies[j])
        mean_SS[i, j] = mean_SS[j, i] = means.get(pair, means.get(pair[::-1], np.nan))
    return mean_SS


def _distances(mean_SS: np.ndarray) -> np.ndarray:
    """Return 1 - cosine of the pairs; a pair without a cosine counts as orthogonal."""
    from scipy.spatial.distance import squareform

    distances_SS = 1 - np.nan_to_num(mean_SS, nan=0.0)
    return squareform(np.clip(distances_SS, 0, 2), checks=False)


def _by_similarity(mean_SS: np.ndarray) -> list[int]:
    """Return the leaf order of average linkage, turned so that neighbours are similar."""
    from scipy.cluster.hierarchy import leaves_list, linkage

    if len(mean_SS) < 3:
        return list(range(len(mean_SS)))
    return leaves_list(linkage(_distances(mean_SS), "average", optimal_ordering=True)).tolist()
