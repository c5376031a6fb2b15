"""The amount of work and of bytes of every task of a plan, from the sizes of its passages and openings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poolbench.contracts.tasks import Task
from poolbench.steps import extractor, prober, scorer, steerer
from poolbench.steps.work import Shape, Shapes, Work, num_texts, work_of
from poolbench_driver.corpora.sources import LocalStep
from poolbench_driver.estimate.quantities import Range, total
from poolbench_driver.stages.stage import Plan, PlanFacts

#: Bytes that a token of text takes in a compressed table, with its id.
_TEXT_TOKEN_BYTES = 6.0
#: Bytes of a table without rows: schema, manifest.
_TABLE_BYTES = 2_000.0
#: Rows of a MEASURES table, bytes of one, and direction constructions of one cell.
_MEASURES, _MEASURE_BYTES, _CONSTRUCTIONS = 30, 60.0, 6
#: Bytes of a row of scores, fluency or probe scores: ids repeat and compress well.
_SCORE_BYTES = 16.0
#: Bytes that a word takes in compressed annotations.
_WORD_BYTES = 8.0
#: Compression moves the size of a table between these factors.
_LOW, _HIGH = 0.5, 1.5
_STATE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Amount:
    """The size of a planned task: its inputs by role, its work, and the bytes that it writes."""

    task: Task
    inputs: Shapes
    work: Work | None
    num_bytes: Range


def amounts_of(plan: Plan) -> dict[str, Amount]:
    """Return the amount of each task by id. A task is planned after those that make its inputs."""
    known: dict[str, Shape] = {key: Shape(step.count()) for key, step in plan.local.items()}
    found: dict[str, Amount] = {}
    sizes = _Sizes(plan.facts)
    for task in plan.tasks.values():
        inputs = {role: known[key] for role, key in task.inputs.items() if key in known}
        outputs = sizes.outputs(task, inputs)
        known |= {task.outputs[role]: shape for role, (shape, _) in outputs.items()}
        written = total(Range.around(size, _LOW, _HIGH) for _, size in outputs.values())
        found[task.task_id] = Amount(task, inputs, work_of(task, inputs), written)
    return found


def local_bytes(facts: PlanFacts, step: LocalStep) -> Range:
    """Return the bytes that the driver writes for a local step."""
    return Range.around(_TABLE_BYTES + step.count() * facts.passage_tokens * _TEXT_TOKEN_BYTES, _LOW, _HIGH)


@dataclass(frozen=True)
class _Sizes:
    """Shapes and bytes of outputs."""

    facts: PlanFacts

    def outputs(self, task: Task, inputs: Shapes) -> Mapping[str, tuple[Shape, float]]:
        """Return shape and bytes of each output by role; without an input whose size is not known, empty ones."""
        try:
            return {role: self._output(task, role, inputs) for role in task.outputs}
        except KeyError:
            return {role: (Shape(), _TABLE_BYTES) for role in task.outputs}

    def _output(self, task: Task, role: str, inputs: Shapes) -> tuple[Shape, float]:
        rows = max((shape.rows for shape in inputs.values()), default=0)
        if task.service == "steerer":
            return self._texts(task, role, inputs)
        if task.service == "scorer":
            return self._scores(task, role, inputs)
        if task.kind == "pooler.annotate":
            return Shape(rows), rows * self.facts.passage_tokens * _WORD_BYTES
        if task.service in ("extractor", "pooler"):
            return self._vectors(role, rows)
        return self._probes(task, role, inputs)

    def _vectors(self, role: str, rows: int) -> tuple[Shape, float]:
        width = self.facts.model.width
        if extractor.STATES.parse(role):
            bytes_per_number = _STATE_BYTES.get(self.facts.model.ref.dtype, 4)
            return Shape(rows), rows * self.facts.passage_tokens * width * bytes_per_number
        if extractor.VECTORS.parse(role):
            return Shape(rows, width), _TABLE_BYTES + rows * (4.0 * width + _SCORE_BYTES)
        return Shape(1), _TABLE_BYTES

    def _probes(self, task: Task, role: str, inputs: Shapes) -> tuple[Shape, float]:
        width = self.facts.model.width
        if prober.SCORES.parse(role):
            rows = sum(inputs[prober.PASSAGES(split)].rows for split in ("train", "test"))
            return Shape(rows), _TABLE_BYTES + rows * _SCORE_BYTES
        if role == prober.NULLS():
            rows = prober.NULL_DIRECTIONS.parse(task.params).num_nulls
            return Shape(rows, width), _TABLE_BYTES + 4.0 * rows * width
        if prober.DIRECTIONS.parse(role) or role == prober.COMMON_COMPONENT():
            return Shape(_CONSTRUCTIONS, width), _TABLE_BYTES + 4.0 * _CONSTRUCTIONS * width
        return Shape(_MEASURES), _TABLE_BYTES + _MEASURES * _MEASURE_BYTES

    def _texts(self, task: Task, role: str, inputs: Shapes) -> tuple[Shape, float]:
        tokens = int(task.params["max_tokens"])
        if task.kind == steerer.CONTINUE.kind:
            rows = min(int(task.params["num_passages"]), inputs[extractor.PASSAGES()].rows)
        elif (at := steerer.TEXTS.parse(role)) is not None:
            rows = num_texts(task, inputs)[at.name]
        else:
            rows = num_texts(task, inputs)[steerer.FLUENCY.address_of(role).name]
            return Shape(rows), _TABLE_BYTES + rows * _SCORE_BYTES
        return Shape(rows), _TABLE_BYTES + rows * (tokens * _TEXT_TOKEN_BYTES + 2 * _SCORE_BYTES)

    def _scores(self, task: Task, role: str, inputs: Shapes) -> tuple[Shape, float]:
        if role == scorer.SCORER():
            params = scorer.TRAIN.parse(task.params)
            # Weights in float32: of the trained layer, or of the whole base, whose size is not known here.
            return Shape(base=params.base), 8e6 if params.mode == "head" else 4.4e8
        if (at := scorer.SCORES.parse(role)) is not None:
            rows = inputs[steerer.TEXTS(at.name)].rows * len(list(scorer.SCORERS.among(inputs)))
            return Shape(rows), _TABLE_BYTES + rows * _SCORE_BYTES
        return Shape(_MEASURES), _TABLE_BYTES + _MEASURES * _MEASURE_BYTES
