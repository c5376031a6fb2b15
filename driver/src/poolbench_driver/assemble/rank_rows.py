"""Rows of the rank boards: mean ranks, a summary of each board, and the pairs of its strategies."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa

from poolbench.suites import RankBoard, metric_info, rank_board
from poolbench_driver.assemble.rows import Row

#: Metrics that strategies are ranked by.
RANKED = (
    "d1.auroc",
    "d1.auroc_test",
    "d1.auroc_nested",
    "d2.scp",
    "d2.best_gain",
    "d2.response_area.excess",
    "d3.robust_ld",
    "d3.robust_lc",
)

#: One row per rank board: the test that any two strategies differ at all, and the critical difference.
BOARDS = pa.schema(
    [
        ("metric", pa.string()),
        ("board", pa.string()),  # all, or complete: blocks in which no strategy is null
        ("num_blocks", pa.int64()),  # concepts in which every strategy has a rank
        ("friedman_statistic", pa.float64()),
        ("friedman_p", pa.float64()),
        ("iman_davenport_p", pa.float64()),
        ("reason", pa.string()),  # why there is no test
        ("critical_difference", pa.float64()),  # Nemenyi, at level .05
        ("tie_groups", pa.string()),  # JSON: the largest sets of strategies within the critical difference
        ("dropped", pa.string()),  # JSON: concepts left out, and why
    ]
)


def rank_rows(rows: list[Row]) -> tuple[list[Row], list[Row], list[Row]]:
    """Return rows of `rank.mean`, a summary of each board, and the pairs of its strategies."""
    versions = {row["strategy"]: row.get("strategy_version") for row in rows if row.get("strategy")}
    ranks: list[Row] = []
    boards: list[Row] = []
    pairwise: list[Row] = []
    for board in _boards(rows):
        name = {"metric": board.metric, "board": board.board}
        ranks += [{**row, "strategy_version": versions.get(row["strategy"])} for row in board.rows()]
        lists = {column: json.dumps(board.summary[column], sort_keys=True) for column in ("dropped", "tie_groups")}
        boards.append({**name, **board.summary, **lists})
        pairwise += [{**name, **row} for row in board.pairwise]
    return ranks, boards, pairwise


def _boards(rows: list[Row]) -> Iterator[RankBoard]:
    for metric in RANKED:
        better = metric_info(metric).higher_is_better is not False
        for complete in (False, True):
            board = rank_board(rows, metric, higher_is_better=better, complete=complete)
            if board is not None:
                yield board
