"""Differences of mean ranks between two runs, over the cells that count in both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from poolbench.statistics.resampling import bootstrap_counts, percentile_interval
from poolbench.statuses import Status
from poolbench.suites import RankBoard, metric_info, rank_agreements, rank_board
from poolbench.suites.cell_table import DROP_STATUSES, WORST_STATUSES
from poolbench_driver.comparison.pairing import Pairing, Row

#: Statuses by which a cell has a place in a rank board, or takes its block out of it.
_COUNTS = (Status.OK, *WORST_STATUSES, *DROP_STATUSES)


def ranked_metrics(first: Sequence[Row], second: Sequence[Row], metrics: Sequence[str] | None) -> list[str]:
    """The metrics that both runs ranked, in the first one's order."""
    sides = [
        dict.fromkeys(json.loads(row["params"]).get("of") for row in rows if row["metric"] == "rank.mean")
        for rows in (first, second)
    ]
    return [name for name in sides[0] if name in sides[1] and (metrics is None or name in metrics)]


def rank_changes(
    pairing: Pairing, metrics: Sequence[str], num_resamples: int, seed: int
) -> tuple[list[Row], list[Row]]:
    """Changes of mean rank by metric and strategy, and by metric how the two runs' mean ranks agree."""
    boards = {metric: pair for metric in metrics if (pair := _boards(pairing, metric)) is not None}
    changes = [row for metric, pair in boards.items() for row in _rank_changes(metric, *pair, num_resamples, seed)]
    agreement = [
        {"metric": metric, **asdict(rank_agreements({"first": a, "second": b}, seed=seed)[0])}
        for metric, (a, b) in boards.items()
    ]
    return changes, agreement


def _boards(pairing: Pairing, metric: str) -> tuple[RankBoard, RankBoard] | None:
    """Both runs' boards over the cells that count in both: a strategy that failed in one must not move the others."""
    better = metric_info(metric).higher_is_better is not False
    of_metric = [pair for pair in pairing.common if pair[0]["metric"] == metric]
    cells = [pair for pair in of_metric if all(cell["status"] in _COUNTS for cell in pair)]
    first, second = (rank_board([pair[side] for pair in cells], metric, higher_is_better=better) for side in (0, 1))
    return None if first is None or second is None else (first, second)


def _rank_changes(metric: str, first: RankBoard, second: RankBoard, num_resamples: int, seed: int) -> list[Row]:
    """Changes of mean ranks over the concepts that both boards hold; both sides share their resamples."""
    blocks = [block for block in first.blocks if block in second.blocks]
    strategies = [name for name in first.strategies if name in second.strategies]
    if not blocks:
        return []
    a, b = (board.ranks_NK[[board.blocks.index(block) for block in blocks]] for board in (first, second))
    a_NK = a[:, [first.strategies.index(name) for name in strategies]]
    b_NK = b[:, [second.strategies.index(name) for name in strategies]]
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
