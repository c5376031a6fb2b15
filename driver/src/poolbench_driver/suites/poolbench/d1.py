"""D1: the prober's measures by cell, checks of each concept, scores by passage, and cosines of directions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, product

import pyarrow as pa

from poolbench.contracts import Row
from poolbench.contracts.results import COSINE_SCHEMA
from poolbench.contracts.tables import PROBE_SCORES
from poolbench.errors import CellError
from poolbench.pooling.registry import STRATEGIES
from poolbench.steps.roles import Cell
from poolbench_driver.contract.source import RowSource, measured, opaque, strategy_columns
from poolbench_driver.loop import Failure
from poolbench_driver.stages.probes import ConceptProbes
from poolbench_driver.suites.poolbench.measures.concept_checks import concept_check_rows
from poolbench_driver.suites.poolbench.measures.cosines import cosine_rows
from poolbench_driver.suites.poolbench.plan import PoolBenchPlan

#: Constructions that are compared, beside the one that steers.
COMPARED = ("C1", "C3")


def identity_of(concept: str, strategy: str, layer: int | None) -> Row:
    """Return the columns of a figure of a strategy; those of a layer chosen inside the folds name no layer."""
    return {**strategy_columns(STRATEGIES.get(strategy)), "concept": concept, "layer": layer, "split": "train"}


def d1_rows(plan: PoolBenchPlan, source: RowSource) -> Iterator[Row]:
    """Yield D1 of every strategy at every layer, then at layers chosen inside the folds, then checks of concepts."""
    rows = list[Row]()
    for name, probes in plan.probes.concepts.items():
        for spec, layer in product(plan.scope.strategies, plan.scope.layers):
            key = probes.measures[Cell(spec.id, layer)]
            rows += measured("d1.auroc", key, identity_of(name, spec.id, layer), source)
    for name, probes in plan.probes.concepts.items():
        for strategy, key in probes.nested.items():
            rows += measured("d1.auroc_nested", key, identity_of(name, strategy, None), source)
    return chain(rows, concept_check_rows(rows))


def published_d1_rows(probes: ConceptProbes, source: RowSource) -> Iterator[Row]:
    """Yield D1 of a concept by the reference's own definition."""
    for (strategy, layer), key in probes.published.items():
        yield from measured("d1.auroc", key, identity_of(probes.concept.id, strategy, layer), source)


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


def cosine_table(plan: PoolBenchPlan, source: RowSource) -> pa.Table:
    """Return cosines of all pairs of a run's strategies, for each concept at each layer that has directions.

    They are computed here, from committed directions: no task is repeated when a strategy is added.
    """
    scope, rows = plan.scope, list[Row]()
    for probes, layer in product(plan.probes.concepts.values(), scope.layers_with_steering):
        directions: dict[str, pa.Table | CellError] = {}
        for spec in scope.strategies:
            try:
                directions[spec.id] = source.required(probes.directions[Cell(spec.id, layer)])
            except CellError as error:
                directions[spec.id] = error
        identity = {"model": scope.model.ref.id, "layer": layer, "concept": probes.concept.id}
        for construction in dict.fromkeys((*COMPARED, scope.config.steering.direction)):
            rows += ({**identity, **row} for row in cosine_rows(directions, construction))
    return pa.Table.from_pylist(rows, COSINE_SCHEMA)
