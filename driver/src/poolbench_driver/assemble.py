"""From artifacts to result rows: joins each cell's identity to the measures of suites and services."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from poolbench import __version__
from poolbench.contracts.results import cell_id, result_table
from poolbench.contracts.tables import PROBE_SCORES
from poolbench.pooling.registry import StrategySpec, get_strategy
from poolbench.storage import Artifacts
from poolbench.suites import RankBoard, concept_check_rows, layer_stability, metric_info, rank_board, to_rows
from poolbench_driver.corpora import dataset_identity, dataset_revision
from poolbench_driver.disclosure import opaque, told
from poolbench_driver.plan import ConceptPlan, Plan
from poolbench_driver.rows import Row, Source, missing, strategy_columns, with_metric
from poolbench_driver.run import Failure
from poolbench_driver.rundir import now
from poolbench_driver.steering_rows import SteeringRows

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

#: One row a rank board: the test that any two strategies differ at all, and how far mean ranks must lie apart.
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


def assemble(plan: Plan, artifacts: Artifacts, failures: Mapping[str, Failure], run_id: str) -> dict[str, pa.Table]:
    """All tables of a run by name: results, curves, passage_scores, text_scores, boards, pairwise, details.

    And ``published`` where that is asked for: rows like those of ``results``, by other definitions.
    """
    source = Source(artifacts, failures, plan.producers())
    common = _common_columns(plan, run_id)
    rows = [row for cells in plan.concepts.values() for row in _d1_rows(plan, cells, source)]
    rows += [row for cells in plan.concepts.values() for row in _nested_rows(plan, cells, source)]
    rows += concept_check_rows(rows)
    rows += to_rows(layer_stability(rows, "d1.auroc", seed=plan.config.seed))
    tables: dict[str, list[Row]] = {"curves": [], "text_scores": []}
    if plan.openings:
        steering = SteeringRows(plan, source)
        rows += steering.scorer_rows()
        for cells in plan.concepts.values():
            rows += steering.rows(cells)
            tables["curves"] += steering.curves(cells)
            tables["text_scores"] += steering.text_scores(cells)
        tables["text_scores"] += steering.unsteered_scores()
    if plan.config.protocol == "published":
        own = {**common, "protocol": "published"}
        tables["published"] = [{**own, **told(row)} for row in _published_rows(plan, source)]
    complete = [{**common, **row} for row in rows]
    ranks, boards, pairwise = _rank_rows(complete)
    complete += [{**common, **row} for row in ranks]
    details = [{"cell_id": cell_id(row), **_details(row)} for row in _filled(complete) if row.get("details")]
    return {
        "results": result_table(_filled(complete)),
        "boards": pa.Table.from_pylist(boards, BOARDS),
        "pairwise": pa.Table.from_pylist(pairwise),
        "details": pa.Table.from_pylist(details),
        "passage_scores": pa.Table.from_pylist(_passage_scores(plan, source)),
        **{name: _table(name, content) for name, content in tables.items()},
    }


def _published_rows(plan: Plan, source: Source) -> Iterable[Row]:
    """Rows by the reference's definitions: a table of their own, so that nothing ranks them with the rest."""
    steering = SteeringRows(plan, source) if plan.openings else None
    for cells in plan.concepts.values():
        for (strategy, layer), key in cells.published.items():
            yield from _measured(key, _d1_identity(cells, get_strategy(strategy), layer), source)
        yield from steering.published_rows(cells) if steering else ()


def _table(name: str, rows: list[Row]) -> pa.Table:
    return result_table(_filled(rows)) if name == "published" else pa.Table.from_pylist(rows)


def _common_columns(plan: Plan, run_id: str) -> Row:
    config, dataset = plan.config, dataset_identity(plan.config)
    return {
        "run_id": run_id,
        "suite": config.suite,
        "protocol": "corrected",  # rows by published definitions lie apart and say so themselves
        "budget": config.budget.name,
        "task": "concept",
        "model": plan.model.ref.id,
        "model_revision": plan.model.ref.revision,
        "dataset": dataset["source"],
        "dataset_revision": dataset_revision(dataset),
        "code_version": __version__,
        "config_hash": config.config_hash(),
        "created_at": now(),
    }


def _d1_rows(plan: Plan, cells: ConceptPlan, source: Source) -> Iterable[Row]:
    for spec in plan.strategies:
        for layer in plan.layers:
            identity = _d1_identity(cells, spec, layer)
            if spec.implemented:
                yield from _measured(cells.measures[spec.id, layer], identity, source)
            else:
                yield {**identity, **missing("d1.auroc", "not_implemented", f"{spec.id} is not implemented yet")}


def _d1_identity(cells: ConceptPlan, spec: StrategySpec, layer: int) -> Row:
    return {**strategy_columns(spec), "concept": cells.concept.id, "layer": layer, "split": "train"}


def _measured(key: str, identity: Row, source: Source) -> Iterable[Row]:
    """The measures of one cell, or the null of one that failed."""
    table = source.table(key)
    if isinstance(table, Failure):
        yield {**identity, **missing("d1.auroc", table.status, table.reason)}
        return
    timings = source.timings(key)
    for measure in table.to_pylist():
        yield {**identity, **timings, **with_metric(measure), "split": _split(measure["metric"])}


def _nested_rows(plan: Plan, cells: ConceptPlan, source: Source) -> Iterable[Row]:
    """D1 at a layer chosen inside the folds: rows without layer, where the configuration asks for them."""
    for spec in plan.implemented:
        key = cells.nested.get(spec.id)
        if key is None:
            continue
        identity = {**strategy_columns(spec), "concept": cells.concept.id, "split": "train"}
        table = source.table(key)
        if isinstance(table, Failure):
            yield {**identity, **missing("d1.auroc_nested", table.status, table.reason)}
            continue
        timings = source.timings(key)
        for measure in table.to_pylist():
            yield {**identity, **timings, **with_metric(measure), "split": _split(measure["metric"])}


def _split(metric: str) -> str:
    return "test" if metric.startswith("d1.auroc_test") else "train"


def _rank_rows(rows: list[Row]) -> tuple[list[Row], list[Row], list[Row]]:
    """Rows of ``rank.mean``, a summary of each board, and the pairs of its strategies."""
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


def _passage_scores(plan: Plan, source: Source) -> list[Row]:
    rows: list[Row] = []
    for cells in plan.concepts.values():
        for (strategy, layer), key in cells.probe_scores.items():
            table = source.table(key)
            if not isinstance(table, Failure):
                identity = {"concept": cells.concept.id, "strategy": strategy, "layer": layer}
                scores = table.select(PROBE_SCORES.names).to_pylist()
                rows += [{**identity, **_without_name(cells, row)} for row in scores]
    return rows


def _without_name(cells: ConceptPlan, row: Row) -> Row:
    if not cells.concept.sensitive:
        return row
    return {**row, "passage_id": opaque(cells.passages[row["split"]], row["passage_id"])}


def _filled(rows: list[Row]) -> list[Row]:
    """Rows with ``params`` as JSON text, as the result schema has it, and with what may be told of their reasons."""
    return [{**told(row), "params": _json(row.get("params"))} for row in rows]


def _details(row: Row) -> Row:
    return {"metric": row["metric"], "details": _json(row["details"])}


def _json(params: Any) -> str:
    return params if isinstance(params, str) else json.dumps(params or {}, sort_keys=True)
