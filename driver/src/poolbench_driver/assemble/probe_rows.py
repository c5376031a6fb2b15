"""Rows of D1: the prober's measures by cell, and its scores by passage."""

from __future__ import annotations

from collections.abc import Iterable

from poolbench.contracts.tables import PROBE_SCORES
from poolbench.pooling.registry import StrategySpec, get_strategy
from poolbench_driver.assemble.disclosure import opaque
from poolbench_driver.assemble.rows import Row, Source, missing, strategy_columns, with_metric
from poolbench_driver.plan import ConceptPlan, Plan
from poolbench_driver.run import Failure


def d1_rows(plan: Plan, cells: ConceptPlan, source: Source) -> Iterable[Row]:
    """D1 of a concept: every strategy at every layer."""
    for spec in plan.strategies:
        for layer in plan.layers:
            identity = _identity(cells, spec, layer)
            if spec.implemented:
                yield from _measured("d1.auroc", cells.measures[spec.id, layer], identity, source)
            else:
                yield {**identity, **missing("d1.auroc", "not_implemented", f"{spec.id} is not implemented yet")}


def nested_rows(plan: Plan, cells: ConceptPlan, source: Source) -> Iterable[Row]:
    """D1 at a layer chosen inside the folds: rows without layer, where the configuration asks for them."""
    for spec in plan.implemented:
        if spec.id in cells.nested:
            yield from _measured("d1.auroc_nested", cells.nested[spec.id], _identity(cells, spec), source)


def published_d1_rows(cells: ConceptPlan, source: Source) -> Iterable[Row]:
    """D1 of a concept by the reference's own definition."""
    for (strategy, layer), key in cells.published.items():
        yield from _measured("d1.auroc", key, _identity(cells, get_strategy(strategy), layer), source)


def _identity(cells: ConceptPlan, spec: StrategySpec, layer: int | None = None) -> Row:
    return {**strategy_columns(spec), "concept": cells.concept.id, "layer": layer, "split": "train"}


def _measured(metric: str, key: str, identity: Row, source: Source) -> Iterable[Row]:
    """The measures of one cell, or a null ``metric`` where it failed."""
    table = source.table(key)
    if isinstance(table, Failure):
        yield {**identity, **missing(metric, table.status, table.reason)}
        return
    timings = source.timings(key)
    for measure in table.to_pylist():
        yield {**identity, **timings, **with_metric(measure), "split": _split(measure["metric"])}


def _split(metric: str) -> str:
    return "test" if metric.startswith("d1.auroc_test") else "train"


def passage_scores(plan: Plan, source: Source) -> list[Row]:
    """The prober's scores by passage; ids of sensitive passages are replaced."""
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
