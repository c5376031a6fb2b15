"""How much work a task is: the amount that its time is proportional to, from the sizes of its inputs.

Workers record it beside the time of each task, and the driver computes it for tasks that it has not sent. Both use the
rules below, so times of earlier tasks give times of planned ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from poolbench.contracts.tasks import Task
from poolbench.errors import PoolbenchError
from poolbench.pooling.registry import STRATEGIES
from poolbench.steps import extractor, pooler, prober, scorer, steerer
from poolbench.steps.common import ModelParams


class Shape(NamedTuple):
    """Size of an input of a task."""

    rows: int = 0
    width: int = 0  # of its vectors; 0 if it has none
    base: str = ""  # base model of a scorer


class Work(NamedTuple):
    """An amount of work. Only amounts of the same kind of task, unit and variant can be compared."""

    amount: float
    unit: str
    variant: str = ""  # what the time of one unit depends on, such as the model


#: Sizes of inputs by role.
Shapes = Mapping[str, Shape]


def work_of(task: Task, inputs: Shapes) -> Work | None:
    """Return the work of a task; None if the kind has no rule, or a size is missing that the rule needs."""
    rule = _RULES.get(task.kind)
    try:
        return None if rule is None else rule(task, inputs)
    except (LookupError, TypeError, ValueError, PoolbenchError):  # a task of other roles than ours
        return None


def num_texts(task: Task, inputs: Shapes) -> dict[str, int]:
    """Return the texts that `steerer.generate` writes, by name. Raise KeyError if a size is missing."""
    params = steerer.GENERATE.parse(task.params)
    per_direction = inputs[steerer.PROMPTS()].rows * params.num_samples * len(params.strengths)
    found = {}
    for role in task.outputs:
        if (at := steerer.TEXTS.parse(role) or steerer.FLUENCY.parse(role)) is None:
            continue
        source = steerer.DIRECTIONS(at.name)
        if source not in task.inputs:
            num_directions = 1
        elif params.direction_ids == "all":
            num_directions = inputs[source].rows
        else:
            num_directions = len(params.direction_ids)
        found[at.name] = per_direction * num_directions
    return found


def model_variant(params: ModelParams) -> str:
    """Return what identifies a language model in `Work.variant`."""
    return f"{params.model}@{params.model_revision}/{params.dtype}"


def _annotate(task: Task, inputs: Shapes) -> Work:
    return Work(inputs[extractor.PASSAGES()].rows, "passages", str(task.params.get("pipeline", "")))


def _pool(task: Task, inputs: Shapes) -> Work:
    rows = max(inputs[role].rows for role in task.inputs if extractor.STATES.parse(role))
    return Work(rows * len(task.outputs), "vectors")


def _extract(task: Task, inputs: Shapes) -> Work:
    params = extractor.EXTRACT.parse(task.params)
    needs = {need for each in params.strategies for need in STRATEGIES.get(each.id).needs}
    backward = " with gradients" if "gradient" in needs else ""
    return Work(inputs[extractor.PASSAGES()].rows, "passages", model_variant(params) + backward)


def _calibrate(task: Task, inputs: Shapes) -> Work:
    variant = model_variant(extractor.CALIBRATE.parse(task.params))
    return Work(inputs[extractor.PASSAGES()].rows, "passages", variant)


def _count(task: Task, inputs: Shapes) -> Work:
    return Work(sum(inputs[role].rows for role in task.inputs), "passages", str(task.params["model"]))


def _probe(task: Task, inputs: Shapes) -> Work:
    """Count the vectors that are read: one for each passage, strategy and layer."""
    cells = [at for role in task.inputs if (at := prober.VECTORS.parse(role)) is not None]
    rows = sum(inputs[prober.PASSAGES(at.split)].rows for at in cells)
    return Work(rows, "vectors", f"{task.params.get('protocol', 'corrected')}, {_width(inputs)}")


def _nulls(task: Task, inputs: Shapes) -> Work:
    params = prober.NULL_DIRECTIONS.parse(task.params)
    return Work(inputs[prober.PASSAGES("train")].rows * params.num_nulls, "vectors", _width(inputs))


def _component(task: Task, inputs: Shapes) -> Work:
    return Work(sum(inputs[role].rows for role in task.inputs), "vectors", _width(inputs))


def _width(inputs: Shapes) -> str:
    """Return the width of the vectors, as part of a variant. Raise KeyError if no vectors have been read."""
    widths = [shape.width for shape in inputs.values() if shape.width]
    if not widths:
        raise KeyError("vectors")
    return f"width {min(widths)}"


def _generate(task: Task, inputs: Shapes) -> Work:
    params = steerer.GENERATE.parse(task.params)
    return Work(sum(num_texts(task, inputs).values()) * params.max_tokens, "tokens", model_variant(params))


def _continue(task: Task, inputs: Shapes) -> Work:
    params = steerer.CONTINUE.parse(task.params)
    texts = min(params.num_passages, inputs[extractor.PASSAGES()].rows)
    return Work(texts * params.max_tokens, "tokens", model_variant(params))


def _train(task: Task, inputs: Shapes) -> Work:
    params = scorer.TRAIN.parse(task.params)
    layers = "" if params.num_layers is None else f", {params.num_layers} layers"
    return Work(inputs[scorer.SCORER_PASSAGES()].rows, "passages", f"{params.base}, {params.mode}{layers}")


def _gate(_: Task, inputs: Shapes) -> Work:
    texts = inputs[scorer.TEST_PASSAGES()].rows + inputs[scorer.CONTINUATIONS()].rows
    return Work(texts, "texts", inputs[scorer.SCORER()].base)


def _score(task: Task, inputs: Shapes) -> Work:
    scorers = [role for role in task.inputs if scorer.SCORERS.parse(role)]
    names = [at.name for role in task.outputs if (at := scorer.SCORES.parse(role)) is not None]
    texts = sum(inputs[steerer.TEXTS(name)].rows for name in names)
    return Work(texts * len(scorers), "scores", inputs[scorers[0]].base)


_RULES: dict[str, Callable[[Task, Any], Work]] = {
    pooler.ANNOTATE.kind: _annotate,
    pooler.POOL.kind: _pool,
    extractor.EXTRACT.kind: _extract,
    extractor.CALIBRATE.kind: _calibrate,
    extractor.COUNT.kind: _count,
    prober.PROBE.kind: _probe,
    prober.LAYERS.kind: _probe,
    prober.CONCEPT_DIRECTIONS.kind: _probe,
    prober.NULL_DIRECTIONS.kind: _nulls,
    prober.COMPONENT_OF_ALL.kind: _component,
    steerer.GENERATE.kind: _generate,
    steerer.CONTINUE.kind: _continue,
    scorer.TRAIN.kind: _train,
    scorer.GATE.kind: _gate,
    scorer.SCORE.kind: _score,
}
