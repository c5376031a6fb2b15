"""Rank strategies over concepts by the null rules of the benchmark."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from poolbench.statistics.inputs import StatisticError
from poolbench.statistics.rank_tests import friedman_test, iman_davenport_test, nemenyi_critical_difference, tie_groups
from poolbench.statistics.ranks import block_ranks, complete_ranks, mean_rank_intervals, mean_ranks
from poolbench.statistics.wilcoxon import least_p
from poolbench.statuses import Status
from poolbench.suites.cell_table import cell_table, require_one_quantity
from poolbench.suites.measure import Measure
from poolbench.suites.pairwise import pairwise_rows

CI_METHOD = "cluster bootstrap over concepts, percentile"


@dataclass(frozen=True)
class RankBoard:
    """Ranks of strategies on one metric.

    Attributes:
        board: `all` (blocks may lack a strategy) or `complete` (only blocks with every strategy that has any value).
        strategies: K names, best mean rank first.
        blocks: N ranked concepts.
        values_NK: Cell values; -inf or inf for the worst-rank nulls, NaN for a missing cell.
        ranks_NK: Ranks within each block.
        measures: One `rank.mean` per strategy, in the order of `strategies`.
        pairwise: Rows of `pairwise_rows`.
        summary: friedman_statistic, friedman_p, iman_davenport_p, critical_difference, num_blocks (complete ones),
            reason (why a test is null), tie_groups (strategies by group), dropped (concept to reason).
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

    @property
    def least_p(self) -> float:
        """Return the least p that a paired test of two strategies can reach over the blocks."""
        return least_p(len(self.blocks))

    def rows(self) -> list[dict[str, Any]]:
        """Return rows for the results: the measure's columns and `strategy`."""
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
    """Rank the strategies in each concept and average over concepts.

    Cells of one (strategy, concept), i.e. its layers and then its models, are averaged first, because they are not
    independent. If one of them is null, or missing although another strategy of the concept has it, the average is
    null.

    Args:
        cells: Result rows with `strategy`, `concept`, `metric`, `value` and `status`; other metrics are ignored.
        metric: Metric to rank.
        higher_is_better: Direction of goodness.
        complete: Drop every block in which a strategy has no cell.
        num_resamples: Resamples of the concepts.
        seed: Seed of the resamples.

    Returns:
        The board, or None if no block has two strategies to compare.

    Raises:
        ConfigError: The cells are of different protocols, budgets, data or versions.
    """
    cells = list(cells)
    require_one_quantity(cells, metric)
    table, dropped = cell_table(cells, metric, higher_is_better)
    blocks = sorted({concept for _, concept in table} - set(dropped))
    strategies = sorted({strategy for strategy, _ in table})
    values = np.array([[table.get((s, block), np.nan) for s in strategies] for block in blocks])
    if values.size == 0:
        return None
    lost = _left_out(values, strategies, complete)
    kept = tuple(block for block, why in zip(blocks, lost, strict=True) if not why)
    if not kept:
        return None
    dropped |= {block: why for block, why in zip(blocks, lost, strict=True) if why}
    values = values[[not why for why in lost]]
    return _board(metric, complete, strategies, kept, values, higher_is_better, num_resamples, seed, dropped)


def _left_out(values_NK: np.ndarray, strategies: Sequence[str], complete: bool) -> list[str]:
    """Return why each block is not ranked, empty if it is.

    A strategy without a value in any rankable block does not make a block incomplete: otherwise none would remain.
    """
    missing = np.isnan(values_NK)
    rankable = ((~missing).sum(axis=1) >= 2) & np.isfinite(values_NK).any(axis=1)
    lacking = missing & ~missing[rankable].all(axis=0)
    return [
        Status.TOO_FEW if not ranked else _lacks(strategies, lacks) if complete else ""
        for ranked, lacks in zip(rankable, lacking, strict=True)
    ]


def _lacks(strategies: Sequence[str], lacks: np.ndarray) -> str:
    names = [strategies[k] for k in np.flatnonzero(lacks)]
    return f"without {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}" if names else ""


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
        pairwise=pairwise_rows(names, values_NK, ranks, higher_is_better=higher_is_better),
        summary={**_summary(names, ranks), "dropped": dropped},
    )


def _rank_measures(metric: str, board: str, ranks_NK: np.ndarray, num_resamples: int, seed: int) -> list[Measure]:
    intervals = mean_rank_intervals(ranks_NK, num_resamples=num_resamples, seed=seed)
    measures = []
    for mean, interval, column in zip(mean_ranks(ranks_NK), intervals, ranks_NK.T, strict=True):
        num_blocks = int(np.isfinite(column).sum())
        fields = {"params": {"of": metric, "board": board}, "n": num_blocks, "num_groups": num_blocks}
        if num_blocks == 0:
            measures.append(Measure.null("rank.mean", Status.TOO_FEW, f"no concept has a value of {metric}", **fields))
        else:
            measures.append(Measure.of("rank.mean", mean, interval, ci_method=CI_METHOD, seed=seed, **fields))
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
