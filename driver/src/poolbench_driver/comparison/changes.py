"""Differences between two runs: values with intervals over concepts, statuses, ranks."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from poolbench.grouping import grouped
from poolbench.statistics.bootstrap import bootstrap_counts, mean_interval, percentile_interval
from poolbench.statistics.paired import paired_permutation_test
from poolbench.statuses import Status
from poolbench_driver.comparison.pairing import (
    Pairing,
    Row,
    cell_counts,
    cells_of_one_run,
    measured_pairs,
    pair_cells,
    status_changes,
)
from poolbench_driver.contract.metrics import metric_info
from poolbench_driver.pages.boards.agreement import rank_agreements, ranks_of
from poolbench_driver.pages.boards.cell_table import DROP_STATUSES, WORST_STATUSES
from poolbench_driver.pages.boards.ranking import RankBoard, rank_board
from poolbench_driver.statistics.multiple import holm


@dataclass(frozen=True)
class RunChanges:
    """The differences of the second run from the first.

    Attributes:
        summary: Counts of common cells, cells in one run only, changed values and changed statuses.
        only_first: Cells that the second run lacks, counted by metric, with the way in which that run's cells differ.
        only_second: Cells that the first run lacks, likewise.
        statuses: Changes of status, counted, with an example of the new reason.
        values: Per metric (strategy `*`: mean over all) and per strategy: mean difference over concepts with
            interval, permutation p and, over the strategies of a metric, Holm's correction.
        ranks: Per metric and strategy: both mean ranks over the common concepts, the change and its interval.
        agreement: Per metric: Spearman correlation of the two runs' mean ranks.
    """

    summary: dict[str, int]
    only_first: list[Row]
    only_second: list[Row]
    statuses: list[Row]
    values: list[Row]
    ranks: list[Row]
    agreement: list[Row]

    def changed(self) -> bool:
        """Return whether any cell differs in presence, status or value."""
        return any(count for name, count in self.summary.items() if name != "common")


def compare_runs(
    first: Sequence[Row],
    second: Sequence[Row],
    *,
    across: Iterable[str] = (),
    metrics: Sequence[str] | None = None,
    num_resamples: int = 1000,
    seed: int = 0,
) -> RunChanges:
    """Return the changes between two runs' result rows. Differences are second minus first.

    Args:
        across: Groups of identity columns that may differ, see `ACROSS`.
        num_resamples: Number of resamples of the concepts, and of random sign patterns if there are too many to count.

    Raises:
        ConfigError: The runs cannot be compared.
        InputError: A run has two rows of one cell.
    """
    pairing = pair_cells(_chosen(first, metrics), _chosen(second, metrics), across)
    ranks, agreement = rank_changes(pairing, ranked_metrics(first, second, metrics), num_resamples, seed)
    return RunChanges(
        summary=cell_counts(pairing),
        only_first=cells_of_one_run(pairing.only_first, second),
        only_second=cells_of_one_run(pairing.only_second, first),
        statuses=status_changes(pairing),
        values=value_changes(pairing, num_resamples, seed),
        ranks=ranks,
        agreement=agreement,
    )


def _chosen(rows: Sequence[Row], metrics: Sequence[str] | None) -> list[Row]:
    return [row for row in rows if metrics is None or row["metric"] in metrics]


def value_changes(pairing: Pairing, num_resamples: int, seed: int) -> list[Row]:
    """Return rows of value differences. Each metric has the mean over strategies first, then each strategy."""
    by_metric = grouped((pair[0]["metric"], pair) for pair in measured_pairs(pairing))
    rows: list[Row] = []
    for metric, pairs in by_metric.items():
        by_strategy = grouped((pair[0]["strategy"] or "", pair) for pair in pairs)
        lines = [
            _value_row(metric, name, strategy_pairs, num_resamples, seed)
            for name, strategy_pairs in sorted(by_strategy.items())
        ]
        adjusted = holm(np.array([line["p"] for line in lines]))
        strategy_rows = [{**line, "p_holm": float(p)} for line, p in zip(lines, adjusted, strict=True)]
        together = {**_value_row(metric, "*", pairs, num_resamples, seed), "p_holm": None}
        rows += [together, *strategy_rows] if len(strategy_rows) > 1 else strategy_rows
    return rows


def _value_row(metric: str, strategy: str, pairs: Sequence[tuple[Row, Row]], num_resamples: int, seed: int) -> Row:
    """Return the mean difference over concepts. Cells of one concept are averaged, because they are not independent."""
    by_concept = grouped((a["concept"] or "", (a["value"], b["value"])) for a, b in pairs)
    means_N2 = np.array([np.mean(value_pairs, axis=0) for _, value_pairs in sorted(by_concept.items())])
    differences = means_N2[:, 1] - means_N2[:, 0]
    interval = mean_interval(differences, num_resamples=num_resamples, seed=seed) or (None, None)
    test = paired_permutation_test(differences, num_resamples=num_resamples, seed=seed)
    return {
        "metric": metric,
        "strategy": strategy,
        "higher_is_better": metric_info(metric).higher_is_better,
        "first": float(means_N2[:, 0].mean()),
        "second": float(means_N2[:, 1].mean()),
        "difference": float(differences.mean()),
        "ci_low": interval[0],
        "ci_high": interval[1],
        "p": test.p_value,
        "concepts": len(differences),
        "cells": len(pairs),
    }


#: Statuses by which a cell has a rank, or removes its block from the board.
_COUNTS = (Status.OK, *WORST_STATUSES, *DROP_STATUSES)


def ranked_metrics(first: Sequence[Row], second: Sequence[Row], metrics: Sequence[str] | None) -> list[str]:
    """Return the metrics that both runs ranked, in the order of the first run."""
    sides = [
        dict.fromkeys(json.loads(row["params"]).get("of") for row in rows if row["metric"] == "rank.mean")
        for rows in (first, second)
    ]
    return [name for name in sides[0] if name in sides[1] and (metrics is None or name in metrics)]


def rank_changes(
    pairing: Pairing, metrics: Sequence[str], num_resamples: int, seed: int
) -> tuple[list[Row], list[Row]]:
    """Change of mean rank by metric and strategy, and by metric how the two runs' mean ranks agree."""
    boards = {metric: pair for metric in metrics if (pair := _boards(pairing, metric)) is not None}
    changes = [row for metric, pair in boards.items() for row in _rank_changes(metric, *pair, num_resamples, seed)]
    agreement = [
        {"metric": metric, **asdict(rank_agreements({"first": a, "second": b}, seed=seed)[0])}
        for metric, (a, b) in boards.items()
    ]
    return changes, agreement


def _boards(pairing: Pairing, metric: str) -> tuple[RankBoard, RankBoard] | None:
    """Return both runs' boards over cells that count in both runs, so that a failure in one run moves no other rank."""
    of_metric = [pair for pair in pairing.common if pair[0]["metric"] == metric]
    cells = [pair for pair in of_metric if all(cell["status"] in _COUNTS for cell in pair)]
    first, second = (rank_board([pair[side] for pair in cells], metric) for side in (0, 1))
    return None if first is None or second is None else (first, second)


def _rank_changes(metric: str, first: RankBoard, second: RankBoard, num_resamples: int, seed: int) -> list[Row]:
    """Return the change of mean ranks over the concepts of both boards. Both boards share the resamples."""
    blocks = [block for block in first.blocks if block in second.blocks]
    strategies = [name for name in first.entrants if name in second.entrants]
    if not blocks:
        return []
    a_NK, b_NK = (ranks_of(board, strategies, blocks) for board in (first, second))
    weights = bootstrap_counts(len(blocks), num_resamples, seed).astype(np.float64)
    return [
        {"metric": metric, "strategy": name, **_rank_change(a_NK[:, k], b_NK[:, k], weights)}
        for k, name in enumerate(strategies)
    ]


def _rank_change(first: np.ndarray, second: np.ndarray, weights_RN: np.ndarray) -> Row:
    both = np.isfinite(first) & np.isfinite(second)
    if not both.any():
        blank = dict.fromkeys(("first", "second", "change", "ci_low", "ci_high"))
        return {**blank, "concepts": 0, "status": Status.TOO_FEW}
    change = second[both] - first[both]
    with np.errstate(invalid="ignore", divide="ignore"):
        samples = (weights_RN[:, both] @ change) / weights_RN[:, both].sum(axis=1)
    interval = percentile_interval(samples) if both.sum() > 1 else None
    low, high = interval or (None, None)
    means = {"first": float(first[both].mean()), "second": float(second[both].mean())}
    return {
        **means, "change": float(change.mean()), "ci_low": low, "ci_high": high,
        "concepts": int(both.sum()), "status": Status.OK,
    }  # fmt: skip
