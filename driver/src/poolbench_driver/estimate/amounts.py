"""The amount of work and of bytes of every task of a plan, from the sizes of its passages and openings."""

from __future__ import annotations

from dataclasses import dataclass

from poolbench.contracts.tasks import Task
from poolbench.steps import get_step
from poolbench.steps.work import TEXT_TOKEN_BYTES, Shape, Sized, Work
from poolbench_driver.corpora.sources import LocalStep
from poolbench_driver.estimate.quantities import Range
from poolbench_driver.stages.stage import Plan, PlanFacts

#: Compression moves the size of a table between these factors.
_LOW, _HIGH = 0.5, 1.5


@dataclass(frozen=True)
class Amount:
    """The size of a planned task: its inputs, its work, and the bytes that it writes."""

    sized: Sized
    work: Work | None
    num_bytes: Range

    @property
    def task(self) -> Task:
        """Return the task."""
        return self.sized.task


def amounts_of(plan: Plan) -> dict[str, Amount]:
    """Return the amount of each task by id. A task is planned after those that make its inputs."""
    known: dict[str, Shape] = {key: Shape(step.count()) for key, step in plan.local.items()}
    found: dict[str, Amount] = {}
    for task in plan.tasks.values():
        inputs = {role: known[key] for role, key in task.inputs.items() if key in known}
        step = get_step(task.kind)
        sized = step.sized(task, inputs, plan.facts.model.width, plan.facts.passage_tokens)
        outputs = step.shapes_of(sized)
        known |= {task.outputs[role]: shape for role, shape in outputs.items()}
        written = Range.around(sum(shape.num_bytes for shape in outputs.values()), _LOW, _HIGH)
        found[task.task_id] = Amount(sized, step.work_of(task, inputs), written)
    return found


def local_bytes(facts: PlanFacts, step: LocalStep) -> Range:
    """Return the bytes that the driver writes for a local step."""
    return Range.around(Shape(step.count(), row_bytes=facts.passage_tokens * TEXT_TOKEN_BYTES).num_bytes, _LOW, _HIGH)
