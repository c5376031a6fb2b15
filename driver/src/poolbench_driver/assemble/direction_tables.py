"""Directions of a concept, measured or neighbour only, and whether one of them can steer."""

from __future__ import annotations

import pyarrow as pa

from poolbench.contracts.tables import error_of
from poolbench.statuses import Status
from poolbench.steps.roles import Cell
from poolbench_driver.assemble.rows import Source
from poolbench_driver.plan import PoolBenchPlan
from poolbench_driver.run import Failure, failure_of


def directions_of(concept: str, strategy: str, plan: PoolBenchPlan, source: Source) -> pa.Table | Failure:
    """Return DIRECTIONS of a concept for a strategy at the steering layer, or why there are none."""
    if concept in plan.scope.absent:
        return Failure("", "", Status.NO_SCORER, plan.scope.absent[concept])
    cell = Cell(strategy, plan.scope.steering_layer)
    if concept in plan.probes.concepts:
        return source.table(plan.probes.concepts[concept].directions[cell])
    assert plan.steering is not None
    return source.table(plan.steering.neighbour_directions.concepts[concept][cell])


def unusable_direction(table: pa.Table | Failure, direction: str) -> Failure | None:
    """Return why texts cannot be steered along a direction; None where they can."""
    if isinstance(table, Failure):
        return table
    ids = table["direction_id"].to_pylist()
    if direction not in ids:
        return Failure("", "", Status.FAILED, f"no direction {direction} among {', '.join(ids)}")
    row = ids.index(direction)
    if table["vector"][row].is_valid:
        return None
    found = table.slice(row, 1).drop_columns(["vector"]).to_pylist()[0]
    return failure_of(error_of(found, f"direction {direction} could not be computed"))
