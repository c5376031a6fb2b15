"""Rank entrants over blocks, such as strategies over concepts, by the null rules of the benchmark; compare pairs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from poolbench.contracts.measures import Measure
from poolbench.statistics.inputs import StatisticError
from poolbench.statuses import Status
from poolbench_driver.contract.metrics import is_higher_better, metric_info
from poolbench_driver.contract.suite import BoardSpec
from poolbench_driver.pages.boards.cell_table import cell_table, require_one_quantity
from poolbench_driver.statistics.multiple import benjamini_hochberg, holm
from poolbench_driver.statistics.ranks import (
    best_first,
    block_ranks,
    complete_ranks,
    friedman_test,
    iman_davenport_test,
    mean_rank_intervals,
    mean_ranks,
    nemenyi_critical_difference,
    nemenyi_test,
    tie_groups,
)
from poolbench_driver.statistics.wilcoxon import least_p, wilcoxon_test


def pairwise_rows(
    names: Sequence[str], values_NK: np.ndarray, ranks_NK: np.ndarray, *, higher_is_better: bool = True
) -> list[dict[str, Any]]:
    """Return one row per pair, over the blocks that have both strategies.

    Args:
        names: K strategies.
        values_NK: Values of the strategies in each block; infinite for a worst-rank null.
        ranks_NK: Ranks of the strategies in each block.
        higher_is_better: Whether a higher value is better.

    Returns:
        Rows with strategy, other, n (blocks), rank_difference and value_difference (means of first minus second),
        effect (matched-pairs rank-biserial, positive if the first is better), p (Wilcoxon), p_holm, p_bh and p_nemenyi
        (needs two complete blocks). A pair that shares no block has nulls with a status and reason.
    """
    pairs = list(combinations(range(len(names)), 2))
    rows = [_pair(names, values_NK, ranks_NK, i, j, 1 if higher_is_better else -1) for i, j in pairs]
    p_values = np.array([np.nan if row["p"] is None else row["p"] for row in rows])
    corrected = zip(holm(p_values), benjamini_hochberg(p_values), strict=True)
    nemenyi = _nemenyi(ranks_NK)
    return [
        {**row, "p_holm": _known(by_holm), "p_bh": _known(by_bh), "p_nemenyi": _known(nemenyi[i, j])}
        for row, (by_holm, by_bh), (i, j) in zip(rows, corrected, pairs, strict=True)
    ]


def _pair(
    names: Sequence[str], values_NK: np.ndarray, ranks_NK: np.ndarray, i: int, j: int, better: int
) -> dict[str, Any]:
    both = np.isfinite(ranks_NK[:, i]) & np.isfinite(ranks_NK[:, j])
    row: dict[str, Any] = {
        "strategy": names[i],
        "other": names[j],
        "n": int(both.sum()),
        "status": Status.OK,
        "reason": "",
    }
    if not both.any():
        nothing = dict.fromkeys(("rank_difference", "value_difference", "p", "effect"))
        return {**row, **nothing, "status": Status.TOO_FEW, "reason": "no concept has both"}
    differences = _differences(values_NK[both, i], values_NK[both, j])
    result = wilcoxon_test(better * differences)
    measured = np.isfinite(values_NK[both, i]) & np.isfinite(values_NK[both, j])
    return {
        **row,
        "rank_difference": float((ranks_NK[both, i] - ranks_NK[both, j]).mean()),
        "value_difference": float(differences[measured].mean()) if measured.any() else None,
        "p": result.p_value,
        "effect": result.effect,
    }


def _differences(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return first minus second. Two worst-rank nulls (both infinite) count as equal."""
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(first - second, nan=0.0, posinf=np.inf, neginf=-np.inf)


def _nemenyi(ranks_NK: np.ndarray) -> np.ndarray:
    """Return Nemenyi's p of all pairs over the complete blocks [K, K]; NaN below two blocks or two strategies."""
    complete, ranked_K = complete_ranks(ranks_NK)
    p_values = np.full((len(ranked_K),) * 2, np.nan)
    if min(complete.shape) >= 2:
        p_values[np.ix_(ranked_K, ranked_K)] = nemenyi_test(-complete)
    return p_values


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


#: Level of every test of two entrants or of all.
LEVEL = 0.05
CI_METHOD = "cluster bootstrap over concepts, percentile"


@dataclass(frozen=True)
class RankBoard:
    """Ranks of entrants on one metric.

    Attributes:
        board: `all` (blocks may lack an entrant) or `complete` (only blocks with every entrant that has any value).
        entrants: K names, best mean rank first. Entrants that lack blocks come last.
        blocks: N names.
        values_NK: Cell values; -inf or inf for the worst-rank nulls, NaN for a missing cell.
        ranks_NK: Ranks within each block.
        measures: One `rank.mean` per entrant, in the order of `entrants`.
        summary: friedman_statistic, friedman_p, iman_davenport_p, critical_difference, num_blocks (complete ones),
            reason (why a test is null), tie_groups (entrants by group), dropped (block to reason).
    """

    metric: str
    board: str
    entrants: tuple[str, ...]
    blocks: tuple[str, ...]
    values_NK: np.ndarray
    ranks_NK: np.ndarray
    measures: list[Measure] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def pairwise(self) -> list[dict[str, Any]]:
        """Return the rows of `pairwise_rows`. They are computed on first use, because many boards need ranks alone."""
        better = is_higher_better(self.metric)
        return pairwise_rows(self.entrants, self.values_NK, self.ranks_NK, higher_is_better=better)

    @property
    def least_p(self) -> float:
        """Return the least p that a paired test of two entrants can reach over the blocks."""
        return least_p(len(self.blocks))

    def rows(self, entrant: str = "strategy") -> list[dict[str, Any]]:
        """Return rows for the results: the measure's columns, and the name of each entrant in a column."""
        return [{**m.to_row(), entrant: name} for name, m in zip(self.entrants, self.measures, strict=True)]


def rank_board(
    cells: Iterable[Mapping[str, Any]],
    metric: str,
    *,
    entrant: str = "strategy",
    block: str = "concept",
    averaged: bool = True,
    complete: bool = False,
) -> RankBoard | None:
    """Rank the entrants in each block, and average the ranks over blocks.

    The cells of an entrant in a block are averaged first, over layers and then over models, because they are not
    independent. A null with a worst-rank status counts as the worst value. Any other null makes the average null, and
    so does a missing model or layer that another entrant of the block has.

    Args:
        cells: Result rows with the two columns, `metric`, `value` and `status`. Rows of other metrics are ignored.
        metric: Metric to rank. Its metadata says whether high is good.
        entrant: Column of the names to compare, such as `strategy`.
        block: Column of the names that ranks are averaged over, such as `concept`.
        averaged: Whether a cell is the mean over models and layers. If not, an entrant is one model at one layer.
        complete: Drop every block in which an entrant has no cell.

    Returns:
        The board, or None if no block has two entrants to compare.

    Raises:
        ConfigError: The cells are of different protocols, budgets, data or versions, or the metric has no direction.
    """
    cells, better = list(cells), is_higher_better(metric)
    require_one_quantity(cells, metric, entrant)
    table, dropped = cell_table(cells, metric, better, entrant, block, averaged)
    blocks = sorted({block_name for _, block_name in table} - set(dropped))
    names = sorted({name for name, _ in table})
    values = np.array([[table.get((name, block_name), np.nan) for name in names] for block_name in blocks])
    if values.size == 0:
        return None
    lost = _left_out(values, names, complete)
    complete_blocks = tuple(block_name for block_name, why in zip(blocks, lost, strict=True) if not why)
    if not complete_blocks:
        return None
    dropped |= {block_name: why for block_name, why in zip(blocks, lost, strict=True) if why}
    values = values[[not why for why in lost]]
    return _board(metric, complete, names, complete_blocks, values, better, dropped)


def board_of(
    rows: Iterable[Mapping[str, Any]], spec: BoardSpec, metric: str, *, complete: bool = False
) -> RankBoard | None:
    """Return the board of a metric, with the columns that a suite declares. See `rank_board`."""
    ranked = [row for row in rows if not spec.is_apart(row)]
    return rank_board(ranked, metric, entrant=spec.entrant, block=spec.block, averaged=spec.averaged, complete=complete)


def _left_out(values_NK: np.ndarray, entrants: Sequence[str], complete: bool) -> list[str]:
    """Return the reason why each block is not ranked, or "" for a ranked block.

    An entrant without a value in any rankable block does not make a block incomplete. Otherwise, no block would remain.
    """
    missing = np.isnan(values_NK)
    rankable = ((~missing).sum(axis=1) >= 2) & np.isfinite(values_NK).any(axis=1)
    lacking = missing & ~missing[rankable].all(axis=0)
    return [
        Status.TOO_FEW if not ranked else _lacks(entrants, lacks) if complete else ""
        for ranked, lacks in zip(rankable, lacking, strict=True)
    ]


def _lacks(entrants: Sequence[str], lacks: np.ndarray) -> str:
    names = [entrants[k] for k in np.flatnonzero(lacks)]
    return f"without {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}" if names else ""


def _board(
    metric: str,
    complete: bool,
    entrants: Sequence[str],
    blocks: tuple[str, ...],
    values_NK: np.ndarray,
    higher_is_better: bool,
    dropped: dict[str, str],
) -> RankBoard:
    decimals = metric_info(metric).rank_decimals
    compared_NK = values_NK if decimals is None else values_NK.round(decimals)
    ranks = block_ranks(compared_NK, higher_is_better=higher_is_better)
    order = best_first(mean_ranks(ranks), np.isfinite(ranks).sum(axis=0))
    names = tuple(entrants[k] for k in order)
    values_NK, ranks = values_NK[:, order], ranks[:, order]
    board = "complete" if complete else "all"
    return RankBoard(
        metric=metric,
        board=board,
        entrants=names,
        blocks=blocks,
        values_NK=values_NK,
        ranks_NK=ranks,
        measures=_rank_measures(metric, board, ranks),
        summary={**_summary(names, ranks), "dropped": dropped},
    )


def _rank_measures(metric: str, board: str, ranks_NK: np.ndarray) -> list[Measure]:
    measures = []
    for mean, interval, column in zip(mean_ranks(ranks_NK), mean_rank_intervals(ranks_NK), ranks_NK.T, strict=True):
        num_blocks = int(np.isfinite(column).sum())
        fields = {"params": {"of": metric, "board": board}, "n": num_blocks, "num_groups": num_blocks}
        if num_blocks == 0:
            measures.append(Measure.null("rank.mean", Status.TOO_FEW, f"no concept has a value of {metric}", **fields))
        else:
            measures.append(Measure.of("rank.mean", mean, interval, ci_method=CI_METHOD, seed=0, **fields))
    return measures


def _summary(names: Sequence[str], ranks_NK: np.ndarray) -> dict[str, Any]:
    complete = complete_ranks(ranks_NK)[0]
    num_blocks, num_treatments = complete.shape
    summary: dict[str, Any] = {"num_blocks": num_blocks, **_friedman(complete)}
    comparable = num_blocks > 0 and num_treatments > 1
    difference = nemenyi_critical_difference(num_treatments, num_blocks) if comparable else None
    groups = [] if difference is None else tie_groups(mean_ranks(ranks_NK), difference)
    return {**summary, "critical_difference": difference, "tie_groups": [[names[k] for k in group] for group in groups]}


def _friedman(complete_NK: np.ndarray) -> dict[str, Any]:
    """Return Friedman's test over the complete blocks and its F form, or the reason why there is none."""
    blank = dict.fromkeys(("friedman_statistic", "friedman_p", "iman_davenport_p"))
    try:
        test = friedman_test(complete_NK)
    except StatisticError as error:
        return {**blank, "reason": f"{error.status}: {error}"}
    if np.isnan(test.statistic):
        return {**blank, "reason": "collapsed: every block ties all strategies"}
    precise = iman_davenport_test(complete_NK)
    return {
        "friedman_statistic": test.statistic,
        "friedman_p": test.p_value,
        "iman_davenport_p": precise.p_value,
        "reason": "",
    }
