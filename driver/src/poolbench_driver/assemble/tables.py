"""From artifacts to the tables of a run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import pyarrow as pa

from poolbench import __version__
from poolbench.config import other_settings
from poolbench.contracts.keys import is_restricted
from poolbench.contracts.results import cell_id, result_table
from poolbench.storage import Artifacts, directions
from poolbench.suites import RankBoard, concept_check_rows, layer_stability, metric_info, rank_board, to_rows
from poolbench_driver.assemble.confounds import Confounds
from poolbench_driver.assemble.probe_rows import cosine_table, d1_rows, nested_rows, passage_scores, published_d1_rows
from poolbench_driver.assemble.rows import Row, RowSource, redacted
from poolbench_driver.assemble.steering_rows import SteeringRows
from poolbench_driver.corpora.sources import dataset_revision, run_dataset
from poolbench_driver.plan import PoolBenchPlan, Scope
from poolbench_driver.run import Failure, FoundDamageError
from poolbench_driver.rundir import now


def assemble(
    plan: PoolBenchPlan, artifacts: Artifacts, failures: Mapping[str, Failure], run_id: str
) -> dict[str, pa.Table]:
    """Return all tables of a run by name.

    `published`, if requested, has rows like those of `results`, by other definitions.

    Raises:
        FoundDamageError: Some artifacts are damaged; it names all that were found.
    """
    source = RowSource(artifacts, failures, plan.producers)
    common = _common_columns(plan.scope, run_id)
    probes = plan.probes.concepts.values()
    rows = [row for own in probes for row in d1_rows(plan.scope, own, source)]
    rows += [row for own in probes for row in nested_rows(own, source)]
    rows += concept_check_rows(rows)
    confounds = Confounds.of(plan, source)
    rows += [row for own in probes for row in confounds.rows(own)]
    rows += to_rows(layer_stability(rows, "d1.auroc", seed=plan.scope.config.seed))
    tables: dict[str, list[Row]] = {"curves": [], "text_scores": []}
    if plan.steering:
        steering = SteeringRows(plan, plan.steering, source)
        rows += steering.scorer_rows()
        for concept in plan.scope.concepts:
            rows += steering.rows(concept)
            tables["curves"] += steering.curves(concept)
            tables["text_scores"] += steering.text_scores(concept)
        tables["text_scores"] += steering.unsteered_scores()
    published = {}
    if plan.scope.config.protocol == "published":
        own = {**common, "protocol": "published"}
        other_rows = [{**own, **redacted(row)} for row in _published_rows(plan, source)]
        published["published"] = result_table(_filled(other_rows))
    complete = [{**common, **row} for row in rows]
    ranks, boards, pairwise = rank_rows(complete)
    complete += [{**common, **row} for row in ranks]
    filled = _filled(complete)
    detailed = [row for row in filled if row.get("details")]
    details = [{"cell_id": cell_id(r), "metric": r["metric"], "details": _json(r["details"])} for r in detailed]
    tables_made = {
        "results": result_table(filled),
        "boards": pa.Table.from_pylist(boards, BOARDS),
        "pairwise": pa.Table.from_pylist(pairwise),
        "details": pa.Table.from_pylist(details),
        "cosines": cosine_table(plan, source),
        directions.TABLE: directions.table_of(_directions(plan, complete, tables["curves"])),
        "audit": confounds.table(),
        "passage_scores": pa.Table.from_pylist(passage_scores(plan, source)),
        **{name: pa.Table.from_pylist(content) for name, content in tables.items()},
        **published,
    }
    if source.damaged:
        raise FoundDamageError(list(source.damaged.values()))
    return tables_made


def _directions(plan: PoolBenchPlan, rows: list[Row], curves: list[Row]) -> Iterator[Row]:
    """Yield the directions that requests may name, with what the run says about them."""
    figures = {
        (row["concept"], row["strategy"], row["layer"], row["metric"]): row["value"]
        for row in rows
        if row["metric"] in ("d1.auroc", "d2.best_gain") and row.get("strategy")
    }
    fluent = dict[tuple[str, str, int], float]()
    for row in curves:
        if row["fluent"] and row["alpha_unit"] == "residual_norm":  # the unit that requests give strengths in
            at = row["concept"], row["strategy"], row["layer"]
            fluent[at] = max(row["strength"], fluent.get(at, 0.0))
    model = plan.scope.model.ref
    for name, probes in plan.probes.concepts.items():
        for (strategy, layer), key in probes.directions.items():
            if not is_restricted(key):
                at = name, strategy, layer
                yield {
                    **{"model": model.id, "model_revision": model.revision, "key": key},
                    **{"concept": name, "strategy": strategy, "layer": layer},
                    "construction": plan.scope.config.steering.direction,
                    "d1": figures.get((*at, "d1.auroc")),
                    "gain": figures.get((*at, "d2.best_gain")),
                    "fluent_strength": fluent.get(at),
                }


def _published_rows(plan: PoolBenchPlan, source: RowSource) -> Iterable[Row]:
    """Yield rows by the reference's definitions; they have a separate table, so that they are not ranked.

    `params.differs` has the settings in which the run is not the reference's.
    """
    steering = SteeringRows(plan, plan.steering, source) if plan.steering else None
    differs = {each.name: each.ours for each in other_settings(plan.scope.config)}
    for probes in plan.probes.concepts.values():
        rows = (published_d1_rows(probes, source), steering.published_rows(probes.concept) if steering else ())
        for row in chain(*rows):
            params = json.loads(_json(row.get("params")))
            yield row | {"params": {**params, "differs": differs}} if differs else row


def _common_columns(scope: Scope, run_id: str) -> Row:
    config, dataset = scope.config, run_dataset(scope.config, scope.concepts)
    return {
        "run_id": run_id,
        "suite": config.suite,
        "protocol": "corrected",  # rows by published definitions are in another table, with their own value
        "budget": config.budget.name,
        "task": "concept",
        "model": scope.model.ref.id,
        "model_revision": scope.model.ref.revision,
        "dataset": dataset["source"],
        "dataset_revision": dataset_revision(dataset),
        "code_version": __version__,
        "config_hash": config.config_hash(),
        "created_at": now(),
    }


def _filled(rows: list[Row]) -> list[Row]:
    """Return rows with `params` as JSON text, as in the result schema, and with redacted reasons."""
    return [{**redacted(row), "params": _json(row.get("params"))} for row in rows]


def _json(params: Any) -> str:
    return params if isinstance(params, str) else json.dumps(params or {}, sort_keys=True)


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


def why_empty(results: pa.Table) -> str:
    """Return the most frequent reasons if no ranked figure of a run has a value; "" if one has.

    A run that was asked for none of them is not empty.
    """
    rows = results.select(["metric", "value", "status", "reason"]).to_pylist()
    ranked = [row for row in rows if row["metric"] in RANKED]
    if not ranked or any(row["value"] is not None for row in ranked):
        return ""
    counts = Counter(f"{row['reason'] or 'no reason is recorded'} ({row['status']})" for row in ranked)
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
