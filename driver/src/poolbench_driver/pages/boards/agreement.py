"""How far two boards order the same strategies alike, such as the boards of two layers."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from poolbench.contracts.measures import Measure
from poolbench.statistics.bootstrap import NUM_RESAMPLES, bootstrap_counts, percentile_interval
from poolbench.statuses import Status
from poolbench_driver.contract.metrics import is_higher_better
from poolbench_driver.pages.boards.cell_table import WORST_STATUSES, require_one_quantity
from poolbench_driver.pages.boards.ranking import RankBoard
from poolbench_driver.statistics.correlation import MIN_POINTS, intraclass, spearman
from poolbench_driver.statistics.ranks import block_ranks, mean_ranks

CI_METHOD = "cluster bootstrap over concepts, percentile"


@dataclass(frozen=True)
class RankAgreement:
    """Spearman correlation of the strategies' mean ranks on two boards, over the cells that have a rank on both."""

    first: str
    second: str
    value: float | None  # correlation over the strategies on both boards; None if it cannot be computed
    interval: tuple[float, float] | None  # from a bootstrap over the blocks of both
    num_strategies: int  # strategies on both
    num_blocks: int  # blocks in which some strategy has a rank on both
    status: Status = Status.OK  # `ok`, `too_few` (under 3 strategies) or `collapsed` (all tied)


def rank_agreements(boards: Mapping[str, RankBoard], *, seed: int = 0) -> list[RankAgreement]:
    """Return the agreement of each pair of boards, e.g. of layers or models."""
    agreements = []
    for (first_name, first), (second_name, second) in combinations(boards.items(), 2):
        blocks = [block for block in first.blocks if block in second.blocks]
        strategies = [name for name in first.entrants if name in second.entrants]
        first_NK, second_NK = (ranks_of(board, strategies, blocks) for board in (first, second))
        agreements.append(_agreement(first_name, second_name, first_NK, second_NK, seed))
    return agreements


def ranks_of(board: RankBoard, strategies: list[str], blocks: list[str]) -> np.ndarray:
    """Return the ranks of some strategies in some blocks of a board, [N, K]."""
    rows = [board.blocks.index(block) for block in blocks]
    return board.ranks_NK[np.ix_(rows, [board.entrants.index(name) for name in strategies])]


def layer_stability(cells: Iterable[Mapping[str, Any]], metric: str, *, seed: int = 0) -> list[Measure]:
    """Return `rank.layer_stability` of a metric for each pair of its layers. Raise ConfigError as `rank_board` does.

    Strategies are ranked in each concept at each layer. A strategy that collapsed or has no coverage gets the worst
    rank. Other nulls get no rank. Only concepts and strategies that both layers have are compared.
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
    return [
        _measure(metric, (first, second), _agreement(str(first), str(second), ranks[first], ranks[second], seed), seed)
        for first, second in combinations(layers, 2)
    ]


@dataclass(frozen=True)
class LayerAgreement:
    """How far the values of strategies agree between layers, on one concept."""

    concept: str
    value: float | None  # intraclass correlation; None with fewer than two strategies, or if all values are equal
    layers: tuple[int, ...]
    num_strategies: int  # strategies with a value at every layer


def layer_agreements(cells: Iterable[Mapping[str, Any]], metric: str) -> list[LayerAgreement]:
    """Return the intraclass correlation ICC(2,1) of the layers for each concept, by name. Strategies are the targets.

    A concept that was measured at one layer alone is left out.
    """
    values = defaultdict[str, dict[tuple[str, int], float]](dict)
    for row in cells:
        if row["metric"] == metric and row["strategy"] and row["layer"] is not None and row["value"] is not None:
            values[row["concept"]][row["strategy"], row["layer"]] = row["value"]
    agreements = []
    for concept, of_concept in sorted(values.items()):
        strategies, layers = (sorted(set(names)) for names in zip(*of_concept, strict=True))
        whole = [name for name in strategies if all((name, layer) in of_concept for layer in layers)]
        if len(layers) > 1:
            matrix = np.array([[of_concept[name, layer] for layer in layers] for name in whole])
            value = intraclass(matrix) if len(whole) > 1 else np.nan
            agreements.append(LayerAgreement(concept, None if np.isnan(value) else value, tuple(layers), len(whole)))
    return agreements


def _value(row: Mapping[str, Any], better: bool) -> float:
    if row["status"] in WORST_STATUSES:
        return -np.inf if better else np.inf
    return np.nan if row["value"] is None else float(row["value"])


def _measure(metric: str, layers: tuple[int, int], agreement: RankAgreement, seed: int) -> Measure:
    fields: dict[str, Any] = {
        "params": {"of": metric, "layers": list(layers)},
        "n": agreement.num_strategies,
        "num_groups": agreement.num_blocks,
        "seed": seed,
    }
    name = "rank.layer_stability"
    if agreement.value is not None:
        return Measure.of(name, agreement.value, agreement.interval, ci_method=CI_METHOD, **fields)
    if agreement.status == Status.TOO_FEW:
        reason = f"{agreement.num_strategies} strategies at both layers; {MIN_POINTS} are needed"
    else:
        reason = "all strategies share one mean rank at a layer"
    return Measure.null(name, agreement.status, reason, **fields)


def _agreement(first: str, second: str, first_NK: np.ndarray, second_NK: np.ndarray, seed: int) -> RankAgreement:
    """Return how two boards agree, from their ranks [blocks, strategies], NaN where a cell has none."""
    both = np.isfinite(first_NK) & np.isfinite(second_NK)
    kept_N, kept_K = both.any(axis=1), both.any(axis=0)
    counts = int(kept_K.sum()), int(kept_N.sum())
    if kept_K.sum() < MIN_POINTS:
        return RankAgreement(first, second, None, None, *counts, Status.TOO_FEW)
    first_NK, second_NK = (np.where(both, ranks_NK, np.nan)[kept_N][:, kept_K] for ranks_NK in (first_NK, second_NK))
    value = float(_correlations(first_NK, second_NK, np.ones((1, counts[1])))[0])
    if not np.isfinite(value):
        return RankAgreement(first, second, None, None, *counts, Status.COLLAPSED)
    weights_RN = bootstrap_counts(counts[1], NUM_RESAMPLES, seed).astype(float)
    interval = percentile_interval(_correlations(first_NK, second_NK, weights_RN)) if counts[1] > 1 else None
    return RankAgreement(first, second, value, interval, *counts)


def _correlations(first_NK: np.ndarray, second_NK: np.ndarray, weights_RN: np.ndarray) -> np.ndarray:
    """Return the correlation of mean ranks under each weighting of the concepts, or NaN if a strategy has no rank."""
    means = [mean_ranks(ranks, weights_RN) for ranks in (first_NK, second_NK)]
    whole = np.isfinite(means).all(axis=(0, 2))
    correlations_R = np.full(len(weights_RN), np.nan)
    if whole.any():
        correlations_R[whole] = spearman(means[0][whole], means[1][whole])
    return correlations_R
