"""Rows of ``cosines.parquet``: how parallel the directions of the strategies are, by concept and layer.

Made when results are assembled, from directions that are there: no task, no artifact of its own, and so nothing to
compute again when a strategy is added. Of sensitive concepts the cosines alone leave the store.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from poolbench.contracts.results import COSINE_SCHEMA
from poolbench.errors import CellError
from poolbench.pooling.registry import StrategySpec
from poolbench.suites import cosine_rows
from poolbench_driver.assemble.disclosure import told
from poolbench_driver.assemble.rows import Row, Source
from poolbench_driver.plan import ConceptPlan, Plan
from poolbench_driver.run import Failure

#: Constructions that are compared, beside the one that steers.
COMPARED = ("C1", "C3")


def cosine_table(plan: Plan, source: Source) -> pa.Table:
    """Cosines of all pairs of a run's strategies, of each concept at each layer that has directions."""
    rows = [
        told(row)
        for cells in plan.concepts.values()
        for layer in plan.layers_with_steering()
        for row in _rows(plan, cells, layer, source)
    ]
    return pa.Table.from_pylist(rows, COSINE_SCHEMA)


def _rows(plan: Plan, cells: ConceptPlan, layer: int, source: Source) -> Iterable[Row]:
    identity = {"model": plan.model.ref.id, "layer": layer, "concept": cells.concept.id}
    tables = {spec.id: _directions(cells, spec, layer, source) for spec in plan.strategies}
    for direction in dict.fromkeys((*COMPARED, plan.config.steering.direction)):
        yield from ({**identity, **row} for row in cosine_rows(tables, direction))


def _directions(cells: ConceptPlan, spec: StrategySpec, layer: int, source: Source) -> pa.Table | CellError:
    """DIRECTIONS of a strategy, or why it has none."""
    if not spec.implemented:
        return CellError("not_implemented", f"{spec.id} is not implemented yet")
    table = source.table(cells.directions[spec.id, layer])
    return CellError(table.status, table.reason) if isinstance(table, Failure) else table
