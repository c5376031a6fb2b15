"""Rows of D1: the prober's measures by cell, its scores by passage, and cosines of the strategies' directions."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pyarrow as pa

from poolbench.contracts import Row
from poolbench.contracts.results import COSINE_SCHEMA
from poolbench.contracts.tables import PROBE_SCORES
from poolbench.errors import CellError
from poolbench.pooling.registry import STRATEGIES, StrategySpec
from poolbench.steps.roles import Cell
from poolbench_driver.contract.source import RowSource, measured, opaque, strategy_columns
from poolbench_driver.loop import Failure
from poolbench_driver.stages.probes import ConceptProbes
from poolbench_driver.stages.scope import Scope
from poolbench_driver.suites.poolbench.measures.cosines import cosine_rows
from poolbench_driver.suites.poolbench.plan import PoolBenchPlan


def d1_rows(scope: Scope, probes: ConceptProbes, source: RowSource) -> Iterable[Row]:
    """Yield D1 of a concept: every strategy at every layer."""
    for spec, layer in product(scope.strategies, scope.layers):
        key = probes.measures[Cell(spec.id, layer)]
        yield from measured("d1.auroc", key, _identity(probes, spec, layer), source)


def nested_rows(probes: ConceptProbes, source: RowSource) -> Iterable[Row]:
    """Yield D1 at a layer chosen inside the folds: rows without layer, where the configuration asks for them."""
    for strategy, key in probes.nested.items():
        yield from measured("d1.auroc_nested", key, _identity(probes, STRATEGIES.get(strategy)), source)


def published_d1_rows(probes: ConceptProbes, source: RowSource) -> Iterable[Row]:
    """Yield D1 of a concept by the reference's own definition."""
    for (strategy, layer), key in probes.published.items():
        yield from measured("d1.auroc", key, _identity(probes, STRATEGIES.get(strategy), layer), source)


def _identity(probes: ConceptProbes, spec: StrategySpec, layer: int | None = None) -> Row:
    return {**strategy_columns(spec), "concept": probes.concept.id, "layer": layer, "split": "train"}


def passage_scores(plan: PoolBenchPlan, source: RowSource) -> list[Row]:
    """Return the prober's scores by passage; ids of sensitive passages are replaced."""
    rows: list[Row] = []
    for name, probes in plan.probes.concepts.items():
        passages = plan.vectors.concepts[name].passages if probes.concept.sensitive else None
        for (strategy, layer), key in probes.scores.items():
            table = source.table(key)
            if not isinstance(table, Failure):
                identity = {"concept": name, "strategy": strategy, "layer": layer}
                for row in table.select(PROBE_SCORES.names).to_pylist():
                    if passages is not None:
                        row["passage_id"] = opaque(passages[row["split"]], row["passage_id"])
                    rows.append({**identity, **row})
    return rows


#: Constructions that are compared, beside the one that steers.
COMPARED = ("C1", "C3")


def cosine_table(plan: PoolBenchPlan, source: RowSource) -> pa.Table:
    """Return cosines of all pairs of a run's strategies, for each concept at each layer that has directions.

    They are computed here, from committed directions: no task is repeated when a strategy is added.
    """
    rows = [
        row
        for probes in plan.probes.concepts.values()
        for layer in plan.scope.layers_with_steering
        for row in _rows(plan, probes, layer, source)
    ]
    return pa.Table.from_pylist(rows, COSINE_SCHEMA)


def _rows(plan: PoolBenchPlan, probes: ConceptProbes, layer: int, source: RowSource) -> Iterable[Row]:
    scope = plan.scope
    identity = {"model": scope.model.ref.id, "layer": layer, "concept": probes.concept.id}
    tables = {spec.id: _directions(source, probes.directions[Cell(spec.id, layer)]) for spec in scope.strategies}
    for direction in dict.fromkeys((*COMPARED, scope.config.steering.direction)):
        yield from ({**identity, **row} for row in cosine_rows(tables, direction))


def _directions(source: RowSource, key: str) -> pa.Table | CellError:
    """Return DIRECTIONS of a strategy, or why it has none."""
    table = source.table(key)
    return table.error if isinstance(table, Failure) else table
