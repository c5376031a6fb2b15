"""From artifacts to the tables of a run: the suite's rows, what all rows share, and the ranks."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa

from poolbench import __version__
from poolbench.contracts import Row
from poolbench.storage import Artifacts
from poolbench_driver.contract.metrics import metric_info
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.source import RowSource
from poolbench_driver.contract.suite import BoardSpec
from poolbench_driver.loop import FoundDamageError
from poolbench_driver.pages.boards.ranking import RankBoard, board_of
from poolbench_driver.records import NOTES
from poolbench_driver.records.folder import now
from poolbench_driver.results import cell_id, result_table
from poolbench_driver.stages.failure import Failure
from poolbench_driver.stages.stage import Plan


def assemble(plan: Plan, artifacts: Artifacts, failures: Mapping[str, Failure], run_id: str) -> dict[str, pa.Table]:
    """Return all tables of a run by name.

    The names are `results`, `boards`, `pairwise`, `details` and `notes`, and the names of the tables of the suite.

    Raises:
        FoundDamageError: Some artifacts are damaged. The error names every damaged artifact that was read.
    """
    source, suite = RowSource(artifacts, failures, plan.producers), SUITES.get(plan.config.suite)
    common = _common_columns(plan, run_id)
    suite_rows = suite.load().assemble(plan, source)
    complete = [complete_row(row, common) for row in suite_rows.rows]
    ranks, boards, pairwise = rank_rows(complete, suite.board)
    complete += [complete_row(row, common) for row in ranks]
    details = [
        {"cell_id": cell_id(row), "metric": row["metric"], "details": _json(row["details"])}
        for row in complete
        if row.get("details")
    ]
    tables = {
        "results": result_table(complete),
        "boards": pa.Table.from_pylist(boards, BOARDS),
        "pairwise": pa.Table.from_pylist(pairwise),
        "details": pa.Table.from_pylist(details),
        NOTES: pa.table({"note": pa.array(plan.facts.notes, pa.string())}),
    }
    for name, content in suite_rows.others.items():
        tables[name] = content if isinstance(content, pa.Table) else pa.Table.from_pylist(content)
    for protocol, rows in suite_rows.unranked.items():
        tables[protocol] = result_table([complete_row(row, {**common, "protocol": protocol}) for row in rows])
    if source.damaged:
        raise FoundDamageError(list(source.damaged.values()))
    return tables


def _common_columns(plan: Plan, run_id: str) -> Row:
    config, facts = plan.config, plan.facts
    return {
        "run_id": run_id,
        "suite": config.suite,
        "protocol": "corrected",  # rows by published definitions are in another table, with their own value
        "budget": config.budget.name,
        "task": facts.task,
        "model": facts.model.ref.id,
        "model_revision": facts.model.ref.revision,
        "dataset": facts.dataset,
        "dataset_revision": facts.dataset_revision,
        "code_version": __version__,
        "config_hash": config.config_hash(),
        "created_at": now(),
    }


def complete_row(row: Row, common: Row) -> Row:
    """Return a result row with the columns that all rows of a run share, metadata of its metric, and JSON `params`."""
    info = metric_info(row["metric"])
    row_columns = {**row, "params": _json(row.get("params"))}
    return {**common, **row_columns, "metric_version": info.version, "higher_is_better": info.higher_is_better}


def _json(params: Any) -> str:
    return params if isinstance(params, str) else json.dumps(params or {}, sort_keys=True)


def why_empty(results: pa.Table, ranked: Collection[str]) -> str:
    """If no ranked figure of a run has a value, return its three most frequent reasons. Otherwise return "".

    A run that measures no ranked metric is not empty, so that "" is returned for it too.
    """
    rows = results.select(["metric", "value", "status", "reason"]).to_pylist()
    ranked_rows = [row for row in rows if row["metric"] in ranked]
    if not ranked_rows or any(row["value"] is not None for row in ranked_rows):
        return ""
    counts = Counter(f"{row['reason'] or 'no reason is recorded'} ({row['status']})" for row in ranked_rows)
    return "; ".join(reason for reason, _ in counts.most_common(3))


#: One row per rank board: the test that any two strategies differ at all, and the critical difference.
BOARDS = pa.schema(
    [
        ("metric", pa.string()),
        ("board", pa.string()),  # all, or complete: blocks in which no strategy is null
        ("num_blocks", pa.int64()),  # concepts in which every strategy has a rank
        ("friedman_statistic", pa.float64()),
        ("friedman_p", pa.float64()),
        ("iman_davenport_p", pa.float64()),
        ("reason", pa.string()),  # why nothing was tested
        ("critical_difference", pa.float64()),  # Nemenyi, at level .05
        ("tie_groups", pa.string()),  # JSON: the largest sets of strategies within the critical difference
        ("dropped", pa.string()),  # JSON: concepts left out, and why
    ]
)


def rank_rows(rows: list[Row], spec: BoardSpec) -> tuple[list[Row], list[Row], list[Row]]:
    """Rank the entrants of a run. Return rows of `rank.mean`, one summary per board, and all pairs of entrants."""
    versions = {row["strategy"]: row.get("strategy_version") for row in rows if row.get("strategy")}
    ranks: list[Row] = []
    boards: list[Row] = []
    pairwise: list[Row] = []
    for board in _boards(rows, spec):
        name = {"metric": board.metric, "board": board.board}
        ranks += [{**row, "strategy_version": versions.get(row[spec.entrant])} for row in board.rows(spec.entrant)]
        lists = {column: json.dumps(board.summary[column], sort_keys=True) for column in ("dropped", "tie_groups")}
        boards.append({**name, **board.summary, **lists})
        pairwise += [{**name, **row} for row in board.pairwise]
    return ranks, boards, pairwise


def _boards(rows: list[Row], spec: BoardSpec) -> Iterator[RankBoard]:
    for metric in spec.ranked:
        for complete in (False, True):
            board = board_of(rows, spec, metric, complete=complete)
            if board is not None:
                yield board
