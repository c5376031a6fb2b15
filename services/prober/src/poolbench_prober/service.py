"""The prober's adapter: tasks `prober.*`, and the same computations over HTTP."""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from fastapi import APIRouter

from poolbench.contracts.bounds import require_at_most
from poolbench.contracts.tables import parts_of, vector_matrix
from poolbench.contracts.tasks import Task
from poolbench.directions import Direction, SparseAutoencoder
from poolbench.directions.sae_files import CONFIG_FILE, WEIGHTS_FILE
from poolbench.errors import CellError, InputError, shown
from poolbench.http.openapi import errors, example
from poolbench.pooling.registry import STRATEGIES
from poolbench.steps import prober as steps
from poolbench.steps.roles import Cell, SplitCell
from poolbench.worker.service import Handler
from poolbench.worker.taskio import TaskIO
from poolbench_prober import cost
from poolbench_prober.answers import answer_direction, answer_probe
from poolbench_prober.contrast import Pairs, StoryPairs, contrast, features_by_subject
from poolbench_prober.d1.core import direction_cell, null_cell, probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.d1.erased import erased_measures
from poolbench_prober.d1.nested import nested_measures
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.instances import instance_vectors
from poolbench_prober.inputs.tokens import TokenStates
from poolbench_prober.inputs.vectors import COMPONENT as COMPONENT_ID
from poolbench_prober.inputs.vectors import PooledVectors, common_component, without_component
from poolbench_prober.probing import Targets, TaskProbes, pilot_answers, predictions_table, task_measures
from poolbench_prober.requests import DirectionAnswer, DirectionRequest, ProbeAnswer, ProbeRequest
from poolbench_prober.sparse import sparse_measures
from poolbench_prober.tables import directions_table, measures_table, scores_table
from poolbench_prober.valence import shifts


class ProberService:
    """Compute probes, directions and D1 from pooled vectors."""

    name = "prober"

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {
            steps.PROBE.kind: self.probe,
            steps.TASK.kind: self.task,
            steps.PILOT.kind: self.pilot,
            steps.LAYERS.kind: self.layers,
            steps.VALENCE.kind: self.valence,
            steps.CONTRAST.kind: self.contrast,
            steps.SPARSE.kind: self.sparse,
            steps.NULL_DIRECTIONS.kind: self.nulls,
            steps.CONCEPT_DIRECTIONS.kind: self.directions,
            steps.COMPONENT_OF_ALL.kind: self.component,
            steps.ERASE.kind: self.erase,
        }
        self._num_cells = 0

    def probe(self, task: Task, io: TaskIO) -> None:
        """Write D1 of every (strategy, layer) of one concept whose outputs are missing."""
        params = steps.PROBE.params_of(task)
        train, test, design = _design(io, params)
        cells = sorted({cell for family in steps.PARTS.values() for _, cell in family.among(io.missing)})
        autoencoders = {
            at.layer: SparseAutoencoder.from_bytes(io.file(role, WEIGHTS_FILE), io.file(role, CONFIG_FILE))
            for role, at in steps.SAE.among(task.inputs)
        }
        for done, cell in enumerate(cells):
            io.progress(done, len(cells), f"{params.concept} {cell.strategy}/{cell.layer}")
            vectors = _vectors(io, task, SplitCell("train", *cell), train, params)
            cost.of_concept(len(train.ids), vectors.width, train.domains, params).require(cost.TASK)
            held_out = _vectors(io, task, SplitCell("test", *cell), test, params)
            result = probe_cell(design, vectors, held_out, params, autoencoders.get(cell.layer))
            tables = {
                steps.MEASURES(*cell): measures_table(result.measures),
                steps.DIRECTIONS(*cell): directions_table(result.directions, vectors.width, result.readout),
                steps.SCORES(*cell): scores_table(result),
            }
            io.write_tables({role: tables[role] for role in sorted(io.missing & set(tables))})
            self._num_cells += 1

    def layers(self, task: Task, io: TaskIO) -> None:
        """Write D1 of every strategy at the layer that is best inside the training folds."""
        params = steps.LAYERS.params_of(task)
        train, test, design = _design(io, params)
        inputs = {at for _, at in steps.VECTORS.among(task.inputs)}
        for done, (role, at) in enumerate(steps.NESTED_MEASURES.among(io.missing)):
            io.progress(done, len(task.outputs), f"{params.concept} {at.strategy}")
            layers = sorted(of.layer for of in inputs if (of.split, of.strategy) == ("train", at.strategy))
            vectors = {
                layer: (
                    _vectors(io, task, SplitCell("train", at.strategy, layer), train, params),
                    _vectors(io, task, SplitCell("test", at.strategy, layer), test, params),
                )
                for layer in layers
            }
            width = max((pair[0].width for pair in vectors.values()), default=0)
            cost.of_concept(len(train.ids), width, train.domains, params, len(layers)).require(cost.TASK)
            io.write_table(role, measures_table(nested_measures(design, vectors, params)))

    def task(self, task: Task, io: TaskIO) -> None:
        """Write the missing measures and predictions of one probing task, for every cell."""
        params = steps.TASK.params_of(task)
        targets = Targets.from_table(io.table(steps.INSTANCES()))
        families = (steps.MEASURES, steps.PREDICTIONS)
        cells = sorted({cell for family in families for _, cell in family.among(io.missing)})
        for done, cell in enumerate(cells):
            io.progress(done, len(cells), f"{params.task} {cell.strategy}/{cell.layer}")
            vectors = _task_vectors(io, task, targets, cell)
            classes = 1 if targets.is_regression else len(targets.classes)
            cost.of_task(len(targets.ids), vectors.width, classes, params).require(cost.TASK)
            probes = TaskProbes.of(targets, vectors, params)
            if steps.PREDICTIONS(*cell) in io.missing:
                io.write_table(steps.PREDICTIONS(*cell), predictions_table(probes))
            if steps.MEASURES(*cell) in io.missing:
                io.write_table(steps.MEASURES(*cell), measures_table(task_measures(probes)))
            self._num_cells += 1

    def pilot(self, task: Task, io: TaskIO) -> None:
        """Write which test instances the probes of every missing cell get right."""
        params = steps.PILOT.params_of(task)
        targets = Targets.from_table(io.table(steps.INSTANCES()))
        for role, cell in steps.ANSWERS.among(io.missing):
            vectors = _task_vectors(io, task, targets, cell)
            cost.of_pilot(vectors.width, len(targets.classes), params).require(cost.TASK)
            what = f"{params.task} {cell.strategy}/{cell.layer}"
            io.write_table(role, pilot_answers(targets, vectors, params, partial(io.progress, note=what)))
            self._num_cells += 1

    def valence(self, task: Task, io: TaskIO) -> None:
        """Write the missing outputs of the preference shift of one fine-tune, for each reading."""
        params = steps.VALENCE.params_of(task)
        random = [at.name for _, at in steps.STATE_VECTORS.among(task.inputs) if at.name not in ("before", "after")]
        for name in random:
            if not re.fullmatch("random/[0-9]+", name):
                raise InputError(f"a state is before, after or random/<number>, got {shown(name)}")
        measured = [at.reading for _, at in steps.SHIFT_MEASURES.among(io.missing)]
        with_words = (at.reading for _, at in steps.WORD_SHIFTS.among(io.missing))
        with_cosines = (at.reading for _, at in steps.WORD_COSINES.among(io.missing))
        readings = sorted({*measured, *with_words, *with_cosines})
        used = random if measured else []  # the tables of words do not depend on them
        num_read = 0

        def vectors(state: str) -> pa.Table:
            nonlocal num_read
            io.progress(num_read, 2 + len(used), f"{params.name} {state}")
            num_read += 1
            return io.table(steps.STATE_VECTORS(state))

        directions = io.table(steps.READ_DIRECTION()) if "direction" in readings else None
        shift_by_reading = shifts(io.table(steps.WORD_TEXTS()), vectors, used, readings, directions, params)
        for reading, shift in shift_by_reading.items():
            tables = {
                steps.SHIFT_MEASURES(reading): measures_table(shift.measures),
                steps.WORD_SHIFTS(reading): shift.words,
            }
            if shift.cosines is not None:
                tables[steps.WORD_COSINES(reading)] = shift.cosines
            io.write_tables({role: tables[role] for role in sorted(io.missing & set(tables))})

    def contrast(self, task: Task, io: TaskIO) -> None:
        """Write the missing scores of each autoencoder on pairs of stories, from all shards of the features."""
        params = steps.CONTRAST.params_of(task)
        pairs = Pairs.from_table(io.table(steps.STORIES()))
        cost.of_contrast(len(pairs.by_subject()), params.num_bootstrap).require(cost.TASK)
        scores_roles = (steps.CONTRAST_MEASURES, steps.SUBJECTS)
        scored = {at.autoencoder for role in scores_roles for _, at in role.among(io.missing)}
        by_feature = {at.autoencoder for _, at in steps.BY_FEATURE.among(io.missing)}
        names = sorted(scored | by_feature)
        for done, name in enumerate(names):
            io.progress(done, len(names), name)
            compared = StoryPairs.read(pairs, _shards_of(io, task, name))
            tables = {}
            if name in scored:
                scores = contrast(compared, params)
                tables[steps.CONTRAST_MEASURES(name)] = measures_table(scores.measures)
                tables[steps.SUBJECTS(name)] = scores.subjects
            if name in by_feature:
                tables[steps.BY_FEATURE(name)] = features_by_subject(compared)
            io.write_tables({role: tables[role] for role in sorted(io.missing & set(tables))})

    def sparse(self, task: Task, io: TaskIO) -> None:
        """Write the missing measures of probes that read few features of an autoencoder."""
        params = steps.SPARSE.params_of(task)
        train, test = (Passages.from_table(io.table(steps.PASSAGES(split))) for split in ("train", "test"))
        cost.of_sparse(max(len(train.ids), len(test.ids)), params).require(cost.TASK)
        for done, (role, at) in enumerate(steps.SPARSE_MEASURES.among(io.missing)):
            io.progress(done, len(task.outputs), f"{params.concept} {at.autoencoder}")
            feature_tables = [io.table(steps.PASSAGE_FEATURES(at.autoencoder, split)) for split in ("train", "test")]
            io.write_table(
                role, measures_table(sparse_measures((train, feature_tables[0]), (test, feature_tables[1]), params))
            )

    def nulls(self, task: Task, io: TaskIO) -> None:
        """Write the null directions of one concept at one layer."""
        params = steps.NULL_DIRECTIONS.params_of(task)
        train = Passages.from_table(io.table(steps.PASSAGES("train")))
        role = next((role for role, _ in steps.VECTORS.among(task.inputs)), str(steps.VECTORS))
        vectors = PooledVectors.from_table(io.table(role), train.ids)
        numbers = params.num_nulls * vectors.width
        require_at_most("numbers in null directions", numbers, cost.TASK.memory / 8, cost.TASK.remedy)
        directions = {direction.id: direction for direction in null_cell(train, vectors, params)}
        io.write_table(steps.NULLS(), directions_table(directions, vectors.width))

    def directions(self, task: Task, io: TaskIO) -> None:
        """Write the directions of one concept without the rest of D1, for neighbours that are not measured."""
        params = steps.CONCEPT_DIRECTIONS.params_of(task)
        train = Passages.from_table(io.table(steps.PASSAGES("train")))
        for role, cell in steps.DIRECTIONS.among(io.missing):
            vectors = _vectors(io, task, SplitCell("train", *cell), train, params)
            result = direction_cell(train, vectors, params)
            io.write_table(role, directions_table(result.directions, vectors.width, result.readout))

    def component(self, task: Task, io: TaskIO) -> None:
        """Write, for one strategy and layer, the component that the train vectors of all concepts have in common."""
        steps.COMPONENT_OF_ALL.params_of(task)
        if not task.inputs:
            raise InputError(
                f"task {task.task_id} ({task.kind}) has no inputs; give {steps.CONCEPT_VECTORS} of each concept"
            )
        tables = {role: io.table(role) for role in sorted(task.inputs)}
        matrices = (vector_matrix(table["vector"]).astype(np.float64) for table in tables.values())
        try:
            component: Direction | CellError = common_component(matrices)
        except CellError as error:
            component = error
        width = next(iter(tables.values())).schema.field("vector").type.list_size
        io.write_table(steps.COMMON_COMPONENT(), directions_table({COMPONENT_ID: component}, width))

    def erase(self, task: Task, io: TaskIO) -> None:
        """Write D1 of one cell on the test passages, after directions were erased from the vectors."""
        params = steps.ERASE.params_of(task)
        read = {}
        for _, at in steps.VECTORS.among(task.inputs):
            passages = Passages.from_table(io.table(steps.PASSAGES(at.split)))
            read[at.split] = passages, _vectors(io, task, at, passages, params)
        if "test" not in read:
            raise InputError(f"task {task.task_id} needs the vectors of one cell on test: {steps.VECTORS}")
        passages, vectors = read.get("train", read["test"])
        cost.of_concept(len(passages.ids), vectors.width, passages.domains, params).require(cost.TASK)
        erased = {at.name: vector_matrix(io.table(role)["vector"]) for role, at in steps.ERASED.among(task.inputs)}
        measures = erased_measures(read.get("train"), read["test"], erased, params)
        io.write_table(steps.ERASED_MEASURES(), measures_table(measures))

    def routes(self, router: APIRouter) -> None:
        """Add `POST /probe` and `POST /direction`."""
        vectors = [[1.0, 0.5], [0.0, 0.4], [0.9, 0.1], [0.2, 0.3], [1.1, 0.2], [0.1, 0.6], [1.2, 0.1], [0.3, 0.2]]
        vectors += [[0.4, 0.3], [0.6, 0.2]]
        labelled = {"vectors": vectors, "labels": [1, 0] * 5}
        probed = labelled | {"params": {"folds": 2, "num_bootstrap": 100, "num_permutations": 1}}

        @router.post("/probe", responses=errors(), openapi_extra=example(probed))
        def probe(request: ProbeRequest) -> ProbeAnswer:
            """Return D1 of vectors that come with the request."""
            return answer_probe(request)

        @router.post("/direction", responses=errors(404), openapi_extra=example(labelled))
        def direction(request: DirectionRequest) -> DirectionAnswer:
            """Return one unit direction between two classes of vectors."""
            return answer_direction(request)

    def health(self) -> dict[str, Any]:
        """Return the number of cells that this replica has probed."""
        return {"cells_probed": self._num_cells}


def _design(io: TaskIO, params: steps.ProbeParams) -> tuple[Passages, Passages, Design]:
    """Return train and test passages, and the design of the probes on them."""
    train, test = (Passages.from_table(io.table(steps.PASSAGES(split))) for split in ("train", "test"))
    cost.of_concept(len(train.ids), 1, train.domains, params).require(cost.TASK)
    return train, test, Design.build(train, test, params)


def _vectors(io: TaskIO, task: Task, at: SplitCell, passages: Passages, params: steps.ProbeParams) -> PooledVectors:
    """Return a cell's vectors, without the common component where the task has one, or the states of its tokens."""
    strategy = STRATEGIES.get(at.strategy)
    if strategy.reads_states:
        try:
            return TokenStates.from_shards(io.shards(steps.VECTORS(*at)), passages, strategy.readout, params.sink_rule)
        except InputError as error:  # kept states that do not fit fail only their own cell
            return PooledVectors.failed(len(passages.ids), 1, error)
    table = io.table(steps.VECTORS(*at))
    try:
        vectors = PooledVectors.from_table(table, passages.ids)
    except InputError as error:  # a table that does not fit fails only its own cell
        width = table.schema.field("vector").type.list_size // parts_of(table)[0]
        vectors = PooledVectors.failed(len(passages.ids), width, error)
    role = steps.COMPONENT(*at.cell)
    return without_component(vectors, io.table(role)) if role in task.inputs else vectors


def _task_vectors(io: TaskIO, task: Task, targets: Targets, cell: Cell) -> PooledVectors:
    """Return the vectors of the instances of a task at a cell, from its shards in the order of their keys."""
    all_shards = steps.TASK_VECTORS.among(task.inputs)
    # By key, so that the names of shards play no part.
    shards = sorted((task.inputs[role], role) for role, at in all_shards if at[:2] == cell)
    try:
        return instance_vectors(targets.parts or (), (io.table(role) for _, role in shards))
    except InputError as error:  # shards that do not fit fail only their own cell
        return PooledVectors.failed(len(targets.ids), 1, error)


def _shards_of(io: TaskIO, task: Task, autoencoder: str) -> Iterator[pa.Table]:
    """Yield the features of an autoencoder in the order of their keys, so that names of shards play no part."""
    keys_and_roles = [
        (task.inputs[role], role) for role, at in steps.STORY_FEATURES.among(task.inputs) if at[0] == autoencoder
    ]
    if not keys_and_roles:
        raise InputError(f"task {task.task_id} has no features of {shown(autoencoder)}; give {steps.STORY_FEATURES}")
    for _, role in sorted(keys_and_roles):
        yield from io.shards(role)


def create() -> ProberService:
    """Create the service. The runtime calls this function in the replica."""
    return ProberService()
