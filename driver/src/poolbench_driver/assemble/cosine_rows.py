"""Rows of ``cosines.parquet``: how parallel the directions of the strategies are, by concept and layer.

Made when results are assembled, from directions that are there: no task, no artifact of its own, and so nothing to
compute again when a strategy is added. Of sensitive concepts the cosines alone leave the store.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from poolbench.contracts.results import COSINE_SCHEMA
from poolbench.errors import CellError
from poolbench.steps.roles import Cell
from poolbench.suites import cosine_rows
from poolbench_driver.assemble.disclosure import redacted
from poolbench_driver.assemble.rows import Row, Source
from poolbench_driver.plan import PoolBenchPlan
from poolbench_driver.plan.probes import ConceptProbes
from poolbench_driver.run import Failure

#: Constructions that are compared, beside the one that steers.
COMPARED = ("C1", "C3")


def cosine_table(plan: PoolBenchPlan, source: Source) -> pa.Table:
    """Cosines of all pairs of a run's strategies, of each concept at each layer that has directions."""
    rows = [
        redacted(row)
        for probes in plan.probes.concepts.values()
        for layer in plan.scope.layers_with_steering
        for row in _rows(plan, probes, layer, source)
    ]
    return pa.Table.from_pylist(rows, COSINE_SCHEMA)


def _rows(plan: PoolBenchPlan, probes: ConceptProbes, layer: int, source: Source) -> Iterable[Row]:
    scope = plan.scope
    identity = {"model": scope.model.ref.id, "layer": layer, "concept": probes.concept.id}
    tables = {spec.id: _directions(source, probes.directions[Cell(spec.id, layer)]) for spec in scope.strategies}
    for direction in dict.fromkeys((*COMPARED, scope.config.steering.direction)):
        yield from ({**identity, **row} for row in cosine_rows(tables, direction))


def _directions(source: Source, key: str) -> pa.Table | CellError:
    """Return DIRECTIONS of a strategy, or why it has none."""
    table = source.table(key)
    return table.error if isinstance(table, Failure) else table
