"""The prober's adapter: tasks ``prober.probe``, ``.nulls``, ``.directions``, ``.component``; and over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from poolbench.contracts.tables import vector_matrix
from poolbench.contracts.tasks import Task
from poolbench.directions import Direction
from poolbench.errors import CellError
from poolbench.pooling.registry import get_strategy
from poolbench.runtime.service import Handler
from poolbench.runtime.taskio import TaskIO
from poolbench_prober.component import COMPONENT, common_component, without_component
from poolbench_prober.config import NullParams, ProbeParams
from poolbench_prober.core import direction_cell, null_cell, probe_cell
from poolbench_prober.corpus import Passages
from poolbench_prober.design import Design
from poolbench_prober.requests import (
    DirectionAnswer,
    DirectionRequest,
    ProbeAnswer,
    ProbeRequest,
    answer_direction,
    answer_probe,
)
from poolbench_prober.tables import directions_table, measures_table, scores_table
from poolbench_prober.tokens import TokenStates
from poolbench_prober.vectors import PooledVectors

if TYPE_CHECKING:
    from fastapi import APIRouter


class ProberService:
    """Pooled vectors to probes, directions and D1."""

    name = "prober"

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {
            "prober.probe": self.probe,
            "prober.nulls": self.nulls,
            "prober.directions": self.directions,
            "prober.component": self.component,
        }
        self._num_cells = 0

    def probe(self, task: Task, io: TaskIO) -> None:
        """D1 of every (strategy, layer) of one concept that still lacks an output."""
        params = ProbeParams.parse(task.params)
        train, test = (Passages.from_table(io.table(f"passages/{split}")) for split in ("train", "test"))
        design = Design.build(train, test, params)
        cells = sorted({role.partition("/")[2] for role in io.missing})
        for done, cell in enumerate(cells):
            io.progress(done, len(cells), f"{params.concept} {cell}")
            vectors = _vectors(io, task, "train", cell, train)
            result = probe_cell(design, vectors, _vectors(io, task, "test", cell, test), params)
            tables = {
                f"measures/{cell}": measures_table(result),
                f"directions/{cell}": directions_table(result.directions, vectors.width, result.readout),
                f"scores/{cell}": scores_table(result),
            }
            for role in sorted(io.missing & set(tables)):
                io.write_table(role, tables[role])
            self._num_cells += 1

    def nulls(self, task: Task, io: TaskIO) -> None:
        """The null directions of one concept at one layer, from the vectors of the one strategy given."""
        params = NullParams.parse(task.params)
        train = Passages.from_table(io.table("passages/train"))
        role = next(role for role in sorted(task.inputs) if role.startswith("train/"))
        vectors = PooledVectors.from_table(io.table(role), train)
        directions = {found.id: found for found in null_cell(train, vectors, params)}
        io.write_table("nulls", directions_table(directions, vectors.width))

    def directions(self, task: Task, io: TaskIO) -> None:
        """The directions of one concept without the rest of D1: for neighbours that are not measured themselves."""
        params = ProbeParams.parse(task.params)
        train = Passages.from_table(io.table("passages/train"))
        for role in sorted(io.missing):
            vectors = _vectors(io, task, "train", role.partition("/")[2], train)
            result = direction_cell(train, vectors, params)
            io.write_table(role, directions_table(result.directions, vectors.width, result.readout))

    def component(self, task: Task, io: TaskIO) -> None:
        """The common component of the train vectors of all concepts, of one strategy at one layer."""
        tables = {role: io.table(role) for role in sorted(task.inputs)}
        matrices = (vector_matrix(table["vector"]).astype(np.float64) for table in tables.values())
        found: Direction | CellError
        try:
            found = common_component(matrices)
        except CellError as error:
            found = error
        width = next(iter(tables.values())).schema.field("vector").type.list_size
        io.write_table("component", directions_table({COMPONENT: found}, width))

    def routes(self, router: APIRouter) -> None:
        """Adds ``POST /probe`` and ``POST /direction``."""

        @router.post("/probe")
        def probe(request: ProbeRequest) -> ProbeAnswer:
            """D1 of vectors that come with the request."""
            return answer_probe(request)

        @router.post("/direction")
        def direction(request: DirectionRequest) -> DirectionAnswer:
            """One unit direction between two classes of vectors."""
            return answer_direction(request)

    def health(self) -> dict[str, Any]:
        """How many cells this replica has probed."""
        return {"cells_probed": self._num_cells}


def _vectors(io: TaskIO, task: Task, split: str, cell: str, passages: Passages) -> PooledVectors:
    """What a cell holds of each passage: its vector, less the common component where the task has one for it, or the
    states of its tokens."""
    strategy = get_strategy(cell.partition("/")[0])
    if strategy.reads_states:
        return TokenStates.from_shards(io.shards(f"{split}/{cell}"), passages, strategy.readout)
    vectors = PooledVectors.from_table(io.table(f"{split}/{cell}"), passages)
    role = f"component/{cell}"
    return without_component(vectors, io.table(role)) if role in task.inputs else vectors


def create() -> ProberService:
    """The service; the runtime calls this in the replica."""
    return ProberService()
