"""Ranks of strategies over concepts, by the null rules of the benchmark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from poolbench.statistics.friedman import friedman_test
from poolbench.statistics.multiple import holm
from poolbench.statistics.nemenyi import nemenyi_critical_difference
from poolbench.statistics.ranks import block_ranks, mean_rank_intervals, mean_ranks
from poolbench.statistics.wilcoxon import wilcoxon_test
from poolbench.suites.measure import Measure

#: A strategy that cannot represent the concept at all takes the shared worst rank of the block.
WORST_STATUSES = ("collapsed", "no_coverage", "class_dependent_coverage")
#: A block whose scorer cannot measure anybody is dropped.
DROP_STATUSES = ("no_scorer", "scorer_invalid", "restricted")
#: These say that the strategy is not built here: it leaves the board.
ABSENT_STATUSES = ("not_implemented",)

CI_METHOD = "cluster bootstrap over concepts, percentile"


@dataclass(frozen=True)
class RankBoard:
    """Ranks of strategies on one metric.

    Attributes:
        metric: The ranked metric.
        board: ``all`` (blocks may lack a strategy) or ``complete`` (only blocks in which none is missing).
        strategies: K names, best mean rank first.
        blocks: N concepts that were ranked.
        values_NK: Cell values; -inf or inf for the worst-rank nulls, NaN for a missing cell.
        ranks_NK: Ranks within each block.
        measures: One ``rank.mean`` a strategy, in the order of ``strategies``.
        pairwise: One row a pair: strategy, other, difference of mean ranks, p, p_holm, effect, n.
        summary: friedman_statistic, friedman_p, critical_difference, num_blocks, dropped (concept to reason).
    """

    metric: str
    board: str
    strategies: tuple[str, ...]
    blocks: tuple[str, ...]
    values_NK: np.ndarray
    ranks_NK: np.ndarray
    measures: list[Measure] = field(default_factory=list)
    pairwise: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """Rows for the results: the measure's columns and ``strategy``."""
        return [{**m.to_row(), "strategy": s} for s, m in zip(self.strategies, self.measures, strict=True)]


def rank_board(
    cells: Iterable[Mapping[str, Any]],
    metric: str,
    *,
    higher_is_better: bool = True,
    complete: bool = False,
    num_resamples: int = 1000,
    seed: int = 0,
) -> RankBoard | None:
    """Ranks the strategies in each concept and averages over concepts.

    Cells of one (strategy, concept), i.e. its layers and models, are averaged first: they are not
    independent. If one of them is null, so is the average.

    Args:
        cells: Result rows with ``strategy``, ``concept``, ``metric``, ``value`` and ``status``; other metrics
            are ignored.
        metric: Metric to rank.
        higher_is_better: Direction of goodness.
        complete: Drop every block in which a strategy has no cell.
        num_resamples: Resamples of the concepts.
        seed: Seed of the resamples.

    Returns:
        The board, or None where no block has two strategies to compare.
    """
    table, dropped = _cell_table(cells, metric, higher_is_better)
    blocks = sorted({concept for _, concept in table} - set(dropped))
    strategies = sorted({strategy for strategy, _ in table})
    values = np.array([[table.get((s, block), np.nan) for s in strategies] for block in blocks])
    if values.size == 0:
        return None
    keep = np.isfinite(values).any(axis=1) & ((~np.isnan(values)).sum(axis=1) >= 2)
    if complete:
        keep &= ~np.isnan(values).any(axis=1)
    if not keep.any():
        return None
    kept = tuple(block for block, kept in zip(blocks, keep, strict=True) if kept)
    return _board(metric, complete, strategies, kept, values[keep], higher_is_better, num_resamples, seed, dropped)


def _board(
    metric: str,
    complete: bool,
    strategies: Sequence[str],
    blocks: tuple[str, ...],
    values_NK: np.ndarray,
    higher_is_better: bool,
    num_resamples: int,
    seed: int,
    dropped: dict[str, str],
) -> RankBoard:
    ranks = block_ranks(values_NK, higher_is_better=higher_is_better)
    order = np.argsort(np.nan_to_num(mean_ranks(ranks), nan=np.inf), kind="stable")
    names = tuple(strategies[k] for k in order)
    values_NK, ranks = values_NK[:, order], ranks[:, order]
    board = "complete" if complete else "all"
    return RankBoard(
        metric=metric,
        board=board,
        strategies=names,
        blocks=blocks,
        values_NK=values_NK,
        ranks_NK=ranks,
        measures=_rank_measures(metric, board, ranks, num_resamples, seed),
        pairwise=_pairwise(names, values_NK if higher_is_better else -values_NK, ranks),
        summary={**_summary(ranks), "dropped": dropped},
    )


def _cell_table(
    cells: Iterable[Mapping[str, Any]], metric: str, higher_is_better: bool
) -> tuple[dict[tuple[str, str], float], dict[str, str]]:
    """Value by (strategy, concept), and the dropped concepts with the reason."""
    worst = -np.inf if higher_is_better else np.inf
    gathered: dict[tuple[str, str], list[float]] = defaultdict(list)
    dropped: dict[str, str] = {}
    for cell in cells:
        if cell["metric"] != metric or cell["status"] in ABSENT_STATUSES:
            continue
        if cell["status"] in DROP_STATUSES:
            dropped[cell["concept"]] = cell["status"]
            continue
        value = worst if cell["status"] in WORST_STATUSES else cell["value"]
        gathered[cell["strategy"], cell["concept"]].append(np.nan if value is None else float(value))
    return {key: float(np.mean(values)) for key, values in gathered.items()}, dropped


def _rank_measures(metric: str, board: str, ranks_NK: np.ndarray, num_resamples: int, seed: int) -> list[Measure]:
    intervals = mean_rank_intervals(ranks_NK, num_resamples=num_resamples, seed=seed)
    measures = []
    for mean, interval, column in zip(mean_ranks(ranks_NK), intervals, ranks_NK.T, strict=True):
        num_blocks = int(np.isfinite(column).sum())
        fields = {"params": {"of": metric, "board": board}, "n": num_blocks, "num_groups": num_blocks}
        if num_blocks == 0:
            measures.append(Measure.null("rank.mean", "too_few", f"no concept has a value of {metric}", **fields))
        else:
            measures.append(Measure.of("rank.mean", mean, interval, ci_method=CI_METHOD, seed=seed, **fields))
    return measures


def _pairwise(names: Sequence[str], goodness_NK: np.ndarray, ranks_NK: np.ndarray) -> list[dict[str, Any]]:
    """Wilcoxon on the differences of each pair over the blocks that have both, with Holm's correction."""
    rows = []
    for i, j in combinations(range(len(names)), 2):
        both = np.isfinite(ranks_NK[:, i]) & np.isfinite(ranks_NK[:, j])
        result = wilcoxon_test(_differences(goodness_NK[both, i], goodness_NK[both, j]))
        gap = float((ranks_NK[both, i] - ranks_NK[both, j]).mean()) if both.any() else None
        row = {"strategy": names[i], "other": names[j], "n": int(both.sum()), "rank_difference": gap}
        rows.append({**row, "p": result.p_value, "effect": result.effect})
    adjusted = holm(np.array([row["p"] for row in rows]))
    return [{**row, "p_holm": float(p)} for row, p in zip(rows, adjusted, strict=True)]


def _differences(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """First minus second; two worst-rank nulls (both -inf) are equal."""
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(first - second, nan=0.0, posinf=np.inf, neginf=-np.inf)


def _summary(ranks_NK: np.ndarray) -> dict[str, Any]:
    complete = ranks_NK[~np.isnan(ranks_NK).any(axis=1)]
    num_blocks, num_treatments = complete.shape
    summary: dict[str, Any] = {"num_blocks": num_blocks, "friedman_statistic": None, "friedman_p": None}
    summary["critical_difference"] = (
        nemenyi_critical_difference(num_treatments, num_blocks) if num_blocks and num_treatments > 1 else None
    )
    if num_blocks >= 2 and num_treatments >= 3:
        test = friedman_test(complete)
        if np.isfinite(test.statistic):
            summary |= {"friedman_statistic": test.statistic, "friedman_p": test.p_value}
    return summary
