"""The cells of a board by block and entrant, and how stable their order is over layers."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

import numpy as np

from poolbench.contracts.measures import Measure
from poolbench.errors import ConfigError
from poolbench.statistics.bootstrap import NUM_RESAMPLES, bootstrap_counts, percentile_interval
from poolbench.statistics.correlation import MIN_POINTS, spearman
from poolbench.statistics.ranks import block_ranks, mean_ranks
from poolbench.statuses import Status
from poolbench_driver.config import ALONG
from poolbench_driver.contract.metrics import is_higher_better

#: An entrant that cannot represent the concept at all takes the shared worst rank of the block.
WORST_STATUSES = (Status.COLLAPSED, Status.NO_COVERAGE, Status.CLASS_DEPENDENT_COVERAGE)
#: A block whose scorer cannot measure anybody is dropped.
DROP_STATUSES = (Status.NO_SCORER, Status.SCORER_INVALID, Status.RESTRICTED)
#: These say that the entrant is not built here: it leaves the board.
ABSENT_STATUSES = (Status.NOT_IMPLEMENTED,)

#: Columns in which all rows of one board agree: a published figure is another quantity than a corrected one, and
#: planted passages are diagnostics that real ones are never ranked with.
ONE_QUANTITY = (
    "suite", "protocol", "budget", "dataset", "dataset_revision", "direction", "alpha_unit", "opening_set",
    "metric_version",
)  # fmt: skip

Cell = Mapping[str, Any]
#: Model and layer of a cell, None where a row has none.
Unit = tuple[Any, Any]


def require_one_quantity(cells: Iterable[Cell], metric: str, entrant: str = "strategy") -> None:
    """Raise ConfigError if rows of a metric differ in a column of `ONE_QUANTITY`, or an entrant has two versions.

    An entrant whose name has its direction may compete with others along another one.
    """
    values_by_column: dict[tuple[str, str], set[Any]] = defaultdict(set)
    for cell in cells:
        if cell["metric"] == metric:
            says_direction = ALONG in (cell[entrant] or "")
            for name in ONE_QUANTITY:
                owner = f" of {cell[entrant]}" if name == "direction" and says_direction else ""
                values_by_column[name, owner].add(cell.get(name))
            values_by_column["strategy_version", f" of {cell[entrant]}"].add(cell.get("strategy_version"))
    for (name, owner), values in values_by_column.items():
        if len(quantities := sorted(map(str, values - {None}))) > 1:
            reason = (
                f"{metric} of {name}{owner} {' and '.join(quantities)}: different quantities are never ranked together"
            )
            raise ConfigError(reason)


def cell_table(
    cells: Iterable[Cell],
    metric: str,
    higher_is_better: bool,
    entrant: str = "strategy",
    block: str = "concept",
    averaged: bool = True,
) -> tuple[dict[tuple[str, str], float], dict[str, str]]:
    """Return the value by entrant and block, and the dropped blocks with the reason.

    A worst-rank null is -inf (inf if lower is better). Any other null is NaN, and so is a cell that lacks a layer or
    model of its block.
    """
    worst = -np.inf if higher_is_better else np.inf
    gathered: dict[tuple[str, str], dict[Unit, list[float]]] = defaultdict(lambda: defaultdict(list))
    units: dict[str, set[Unit]] = defaultdict(set)
    dropped: dict[str, str] = {}
    for cell in cells:
        if cell["metric"] != metric or cell["status"] in ABSENT_STATUSES:
            continue
        if cell["status"] in DROP_STATUSES:
            dropped[cell[block]] = cell["status"]
            continue
        value = worst if cell["status"] in WORST_STATUSES else cell["value"]
        unit = (cell.get("model"), cell.get("layer")) if averaged else (None, None)
        gathered[cell[entrant], cell[block]][unit].append(np.nan if value is None else float(value))
        units[cell[block]].add(unit)
    return {key: _average(values, units[key[1]]) for key, values in gathered.items()}, dropped


def _average(values: Mapping[Unit, list[float]], units: set[Unit]) -> float:
    """Return the mean over the layers of each model, then over models; NaN if the cell lacks a unit of its block."""
    if set(values) != units:
        return float("nan")
    models: dict[Any, list[float]] = defaultdict(list)
    for (model, _), unit_values in values.items():
        models[model] += unit_values
    return float(np.mean([np.mean(unit_values) for unit_values in models.values()]))


CI_METHOD = "cluster bootstrap over concepts, percentile"


def layer_stability(cells: Iterable[Mapping[str, Any]], metric: str, *, seed: int = 0) -> list[Measure]:
    """Return `rank.layer_stability` of a metric for each pair of its layers. Raise ConfigError as `rank_board` does.

    Strategies are ranked in each concept at each layer. A collapsed strategy, or one without coverage, takes the worst
    rank; other nulls have none. Concepts and strategies of both layers are compared.
    """
    cells, better = list(cells), is_higher_better(metric)
    require_one_quantity(cells, metric)
    rows = [row for row in cells if row["metric"] == metric and row["layer"] is not None and row["strategy"]]
    layers = sorted({row["layer"] for row in rows})
    value = {(row["layer"], row["concept"], row["strategy"]): _value(row, better) for row in rows}
    concepts, strategies = (sorted({row[name] for row in rows}) for name in ("concept", "strategy"))
    ranks = {
        layer: block_ranks(
            np.array([[value.get((layer, c, s), np.nan) for s in strategies] for c in concepts]),
            higher_is_better=better,
        )
        for layer in layers
    }
    return [_pair(metric, pair, [ranks[layer] for layer in pair], seed) for pair in combinations(layers, 2)]


def _value(row: Mapping[str, Any], better: bool) -> float:
    if row["status"] in WORST_STATUSES:
        return -np.inf if better else np.inf
    return np.nan if row["value"] is None else float(row["value"])


def _pair(metric: str, layers: tuple[int, int], ranks: list[np.ndarray], seed: int) -> Measure:
    """Measure one pair of layers; `ranks` are [concepts, strategies], NaN if a cell is missing."""
    both = np.isfinite(ranks[0]) & np.isfinite(ranks[1])
    kept_N, kept_K = both.any(axis=1), both.any(axis=0)
    first, second = (np.where(both, ranks_NK, np.nan)[kept_N][:, kept_K] for ranks_NK in ranks)
    fields: dict[str, Any] = {
        "params": {"of": metric, "layers": list(layers)},
        "n": int(kept_K.sum()),
        "num_groups": int(kept_N.sum()),
        "seed": seed,
    }
    name = "rank.layer_stability"
    if kept_K.sum() < MIN_POINTS:
        reason = f"{kept_K.sum()} strategies at both layers; {MIN_POINTS} are needed"
        return Measure.null(name, Status.TOO_FEW, reason, **fields)
    value = float(_correlations(first, second, np.ones((1, len(first))))[0])
    if not np.isfinite(value):
        return Measure.null(name, Status.COLLAPSED, "all strategies share one mean rank at a layer", **fields)
    counts = bootstrap_counts(len(first), NUM_RESAMPLES, seed).astype(float)
    interval = percentile_interval(_correlations(first, second, counts)) if len(first) > 1 else None
    return Measure.of(name, value, interval, ci_method=CI_METHOD, **fields)


def _correlations(first_NK: np.ndarray, second_NK: np.ndarray, weights_RN: np.ndarray) -> np.ndarray:
    """Return the correlation of mean ranks under each weighting of the concepts; NaN if a strategy has none."""
    means = [mean_ranks(ranks, weights_RN) for ranks in (first_NK, second_NK)]
    whole = np.isfinite(means).all(axis=(0, 2))
    correlations_R = np.full(len(weights_RN), np.nan)
    if whole.any():
        correlations_R[whole] = spearman(means[0][whole], means[1][whole])
    return correlations_R
