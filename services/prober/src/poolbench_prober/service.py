"""The prober's adapter: tasks ``prober.*``, and the same questions over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from poolbench.contracts.bounds import require_at_most
from poolbench.contracts.tables import parts_of, vector_matrix
from poolbench.contracts.tasks import Task
from poolbench.directions import Direction, SparseAutoencoder
from poolbench.directions.sae_files import CONFIG_FILE, WEIGHTS_FILE
from poolbench.errors import CellError, InputError, shown
from poolbench.pooling.registry import get_strategy
from poolbench.runtime.openapi import errors, example
from poolbench.runtime.service import Handler
from poolbench.runtime.taskio import TaskIO
from poolbench_prober import cost
from poolbench_prober.answers import answer_direction, answer_probe
from poolbench_prober.config import NullParams, ProbeParams, TaskParams
from poolbench_prober.d1.core import direction_cell, null_cell, probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.d1.nested import nested_measures
from poolbench_prober.inputs.component import COMPONENT, common_component, without_component
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.tokens import TokenStates
from poolbench_prober.inputs.vectors import Identified, PooledVectors, joined
from poolbench_prober.requests import DirectionAnswer, DirectionRequest, ProbeAnswer, ProbeRequest
from poolbench_prober.tables import directions_table, measures_table, rows_table, scores_table
from poolbench_prober.tasks import Targets, task_measures

if TYPE_CHECKING:
    from fastapi import APIRouter


class ProberService:
    """Pooled vectors to probes, directions and D1."""

    name = "prober"

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {
            "prober.probe": self.probe,
            "prober.task": self.task,
            "prober.layers": self.layers,
            "prober.nulls": self.nulls,
            "prober.directions": self.directions,
            "prober.component": self.component,
        }
        self._num_cells = 0

    def probe(self, task: Task, io: TaskIO) -> None:
        """D1 of every (strategy, layer) of one concept that still lacks an output."""
        params = ProbeParams.parse(task.params)
        train, test = (Passages.from_table(io.table(f"passages/{split}")) for split in ("train", "test"))
        cost.of_concept(len(train.ids), 1, train.domains, params).require(cost.TASK)
        design = Design.build(train, test, params)
        cells = sorted({role.partition("/")[2] for role in io.missing})
        autoencoders = {role: _autoencoder(io, role) for role in task.inputs if role.startswith("sae/")}
        for done, cell in enumerate(cells):
            io.progress(done, len(cells), f"{params.concept} {cell}")
            vectors = _vectors(io, task, "train", cell, train)
            cost.of_concept(len(train.ids), vectors.width, train.domains, params).require(cost.TASK)
            sae = autoencoders.get(f"sae/{cell.rpartition('/')[2]}")
            result = probe_cell(design, vectors, _vectors(io, task, "test", cell, test), params, sae)
            tables = {
                f"measures/{cell}": measures_table(result),
                f"directions/{cell}": directions_table(result.directions, vectors.width, result.readout),
                f"scores/{cell}": scores_table(result),
            }
            for role in sorted(io.missing & set(tables)):
                io.write_table(role, tables[role])
            self._num_cells += 1

    def layers(self, task: Task, io: TaskIO) -> None:
        """D1 of every strategy at the layer that is best inside the training folds."""
        params = ProbeParams.parse(task.params)
        train, test = (Passages.from_table(io.table(f"passages/{split}")) for split in ("train", "test"))
        cost.of_concept(len(train.ids), 1, train.domains, params).require(cost.TASK)
        design = Design.build(train, test, params)
        for done, role in enumerate(sorted(io.missing)):
            strategy = role.removeprefix("measures/")
            io.progress(done, len(task.outputs), f"{params.concept} {strategy}")
            found = sorted(_layer(name) for name in task.inputs if name.startswith(f"train/{strategy}/"))
            vectors = {
                layer: (
                    _vectors(io, task, "train", f"{strategy}/{layer}", train),
                    _vectors(io, task, "test", f"{strategy}/{layer}", test),
                )
                for layer in found
            }
            width = max((pair[0].width for pair in vectors.values()), default=0)
            cost.of_concept(len(train.ids), width, train.domains, params, len(found)).require(cost.TASK)
            io.write_table(role, rows_table(nested_measures(design, vectors, params)))

    def task(self, task: Task, io: TaskIO) -> None:
        """One probing task on every set of vectors that still lacks its measures; ``pair/`` holds second parts."""
        params = TaskParams.parse(task.params)
        targets = Targets.from_table(io.table("targets"))
        cells = sorted(role.removeprefix("measures/") for role in io.missing)
        for done, cell in enumerate(cells):
            io.progress(done, len(cells), f"{params.task} {cell}")
            roles = [role for role in (f"vectors/{cell}", f"pair/{cell}") if role in task.inputs]
            vectors = joined([_pooled(io.table(role), targets) for role in roles])
            classes = 1 if targets.is_regression else len(np.unique(targets.values))
            cost.of_task(len(targets.ids), vectors.width, classes, params).require(cost.TASK)
            io.write_table(f"measures/{cell}", rows_table(task_measures(targets, vectors, params)))
            self._num_cells += 1

    def nulls(self, task: Task, io: TaskIO) -> None:
        """The null directions of one concept at one layer, from the vectors of the one strategy given."""
        params = NullParams.parse(task.params)
        train = Passages.from_table(io.table("passages/train"))
        role = next((role for role in sorted(task.inputs) if role.startswith("train/")), "train/<strategy>/<layer>")
        vectors = PooledVectors.from_table(io.table(role), train)
        numbers = params.num_nulls * vectors.width
        require_at_most("numbers in null directions", numbers, cost.TASK.memory / 8, cost.TASK.remedy)
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
        if not task.inputs:
            raise InputError(f"task {task.task_id} ({task.kind}) has no inputs; give train/<concept> of each concept")
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

        vectors = [[1.0, 0.5], [0.0, 0.4], [0.9, 0.1], [0.2, 0.3], [1.1, 0.2], [0.1, 0.6], [1.2, 0.1], [0.3, 0.2]]
        labelled = {"vectors": vectors, "labels": [1, 0] * 4}
        probed = labelled | {"params": {"folds": 2, "num_bootstrap": 100, "num_permutations": 1}}

        @router.post("/probe", responses=errors(), openapi_extra=example(probed))
        def probe(request: ProbeRequest) -> ProbeAnswer:
            """D1 of vectors that come with the request."""
            return answer_probe(request)

        @router.post("/direction", responses=errors(404), openapi_extra=example(labelled))
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
        return _token_states(io, f"{split}/{cell}", passages, strategy.readout)
    vectors = _pooled(io.table(f"{split}/{cell}"), passages)
    role = f"component/{cell}"
    return without_component(vectors, io.table(role)) if role in task.inputs else vectors


def _layer(role: str) -> int:
    """The layer that a role ends in."""
    number = role.rpartition("/")[2]
    if not number.isdecimal():
        raise InputError(f"input role {shown(role)} must be <split>/<strategy>/<layer>, with a layer from 0")
    return int(number)


def _autoencoder(io: TaskIO, role: str) -> SparseAutoencoder:
    return SparseAutoencoder.from_bytes(io.file(role, WEIGHTS_FILE), io.file(role, CONFIG_FILE))


def _pooled(table: pa.Table, instances: Identified) -> PooledVectors:
    """The vectors of a table; one that does not fit takes its own cell down, not the task."""
    try:
        return PooledVectors.from_table(table, instances)
    except InputError as error:
        width = table.schema.field("vector").type.list_size // parts_of(table)[0]
        return PooledVectors.failed(len(instances.ids), width, error)


def _token_states(io: TaskIO, role: str, passages: Passages, readout: str | None) -> PooledVectors:
    """Kept states; those that do not fit take their own cell down."""
    try:
        return TokenStates.from_shards(io.shards(role), passages, readout)
    except InputError as error:
        return PooledVectors.failed(len(passages.ids), 1, error)


def create() -> ProberService:
    """The service; the runtime calls this in the replica."""
    return ProberService()
