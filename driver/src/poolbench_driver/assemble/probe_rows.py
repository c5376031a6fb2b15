"""Rows of D1: the prober's measures by cell, and its scores by passage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

from poolbench.contracts.tables import PROBE_SCORES
from poolbench.pooling.registry import STRATEGIES, StrategySpec
from poolbench.steps.roles import Cell
from poolbench_driver.assemble.disclosure import opaque
from poolbench_driver.assemble.rows import Row, Source, missing, strategy_columns, with_metric
from poolbench_driver.plan import PoolBenchPlan, Scope
from poolbench_driver.plan.probes import ConceptProbes
from poolbench_driver.run import Failure


def d1_rows(scope: Scope, probes: ConceptProbes, source: Source) -> Iterable[Row]:
    """Yield D1 of a concept: every strategy at every layer."""
    for spec, layer in product(scope.strategies, scope.layers):
        key = probes.measures[Cell(spec.id, layer)]
        yield from _measured("d1.auroc", key, _identity(probes, spec, layer), source)


def nested_rows(probes: ConceptProbes, source: Source) -> Iterable[Row]:
    """Yield D1 at a layer chosen inside the folds: rows without layer, where the configuration asks for them."""
    for strategy, key in probes.nested.items():
        yield from _measured("d1.auroc_nested", key, _identity(probes, STRATEGIES.get(strategy)), source)


def published_d1_rows(probes: ConceptProbes, source: Source) -> Iterable[Row]:
    """Yield D1 of a concept by the reference's own definition."""
    for (strategy, layer), key in probes.published.items():
        yield from _measured("d1.auroc", key, _identity(probes, STRATEGIES.get(strategy), layer), source)


def _identity(probes: ConceptProbes, spec: StrategySpec, layer: int | None = None) -> Row:
    return {**strategy_columns(spec), "concept": probes.concept.id, "layer": layer, "split": "train"}


def _measured(metric: str, key: str, identity: Row, source: Source) -> Iterable[Row]:
    """The measures of one cell, or a null ``metric`` where it failed."""
    table = source.table(key)
    if isinstance(table, Failure):
        yield {**identity, **missing(metric, table)}
        return
    timings = source.timings(key)
    for measure in table.to_pylist():
        yield {**identity, **timings, **with_metric(measure), "split": _split(measure["metric"])}


def _split(metric: str) -> str:
    return "test" if metric.startswith("d1.auroc_test") else "train"


def passage_scores(plan: PoolBenchPlan, source: Source) -> list[Row]:
    """Return the prober's scores by passage; ids of sensitive passages are replaced."""
    rows: list[Row] = []
    for name, probes in plan.probes.concepts.items():
        passages = plan.vectors.concepts[name].passages if probes.concept.sensitive else None
        for (strategy, layer), key in probes.scores.items():
            table = source.table(key)
            if not isinstance(table, Failure):
                identity = {"concept": name, "strategy": strategy, "layer": layer}
                scores = table.select(PROBE_SCORES.names).to_pylist()
                rows += [{**identity, **_without_name(passages, row)} for row in scores]
    return rows


def _without_name(passages: Mapping[str, str] | None, row: Row) -> Row:
    if passages is None:
        return row
    return {**row, "passage_id": opaque(passages[row["split"]], row["passage_id"])}
