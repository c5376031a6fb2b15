"""Directions of a concept, measured or neighbour only, and whether one of them can steer."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import directions_schema, table_from_rows, vector_matrix
from poolbench.directions import DirectionContext, compute_direction
from poolbench.errors import CellError
from poolbench.pooling.registry import StrategySpec
from poolbench_driver.assemble.rows import Source
from poolbench_driver.plan import ConceptPlan, Plan
from poolbench_driver.run import Failure


def directions_of(cells: ConceptPlan, spec: StrategySpec, plan: Plan, source: Source) -> pa.Table | Failure:
    """DIRECTIONS of a measured concept's strategy at the steering layer."""
    return source.table(cells.directions[spec.id, plan.steering_layer])


def unusable_direction(table: pa.Table | Failure, direction: str) -> Failure | None:
    """Why texts cannot be steered along a direction; None where they can."""
    if isinstance(table, Failure):
        return table
    ids = table["direction_id"].to_pylist()
    if direction not in ids:
        return Failure("", "", "failed", f"no direction {direction} among {', '.join(ids)}")
    row = ids.index(direction)
    if table["vector"][row].is_valid:
        return None
    reason = table["reason"][row].as_py() or f"direction {direction} could not be computed"
    return Failure("", "", table["status"][row].as_py() or "failed", reason)


def neighbour_directions(neighbour: str, spec: StrategySpec, plan: Plan, source: Source) -> pa.Table | Failure:
    """DIRECTIONS of a neighbour for the same strategy and layer: the prober's, else from its train vectors."""
    layer = plan.steering_layer
    if neighbour in plan.absent:
        return Failure("", "", "no_scorer", plan.absent[neighbour])
    if neighbour in plan.concepts:
        return directions_of(plan.concepts[neighbour], spec, plan, source)
    cells = plan.neighbours[neighbour]
    if (spec.id, layer) in cells.directions:
        return directions_of(cells, spec, plan, source)
    vectors = source.table(cells.vectors["train", spec.id, layer])
    if isinstance(vectors, Failure):
        return vectors
    passages = source.table(cells.passages["train"])
    if isinstance(passages, Failure):
        return passages
    try:
        return _mean_difference(vectors, passages)
    except CellError as error:
        return Failure("", "", error.status, str(error))


def _mean_difference(vectors: pa.Table, passages: pa.Table) -> pa.Table:
    """DIRECTIONS with C1 of a concept that is a neighbour only, so that the prober has no cell of it."""
    matrix = vector_matrix(vectors["vector"]).astype(np.float64)
    finite = np.isfinite(matrix).all(axis=1)
    labels = passages["label"].to_numpy()[finite]
    context = DirectionContext(matrix[finite], labels, np.empty((0, 2), dtype=np.int64))
    direction = compute_direction("C1", context)
    row = {"direction_id": "C1", "vector": direction.vector, "raw_norm": direction.raw_norm, "status": "ok"}
    return table_from_rows([row], directions_schema(matrix.shape[1]))
