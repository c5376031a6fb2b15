"""Typed steps: each is declared once, for the driver that plans it and the service that runs it."""

from typing import Any

from poolbench.contracts.keys import digest
from poolbench.contracts.tasks import TASK_SCHEMA_VERSION, Task
from poolbench.contracts.work import Shapes, Work
from poolbench.steps.base import Step, UnknownStepError, by_kind
from poolbench.steps.extractor import EXTRACTOR_STEPS
from poolbench.steps.local import LOCAL_STEPS
from poolbench.steps.pooler import POOLER_STEPS
from poolbench.steps.prober import PROBER_STEPS
from poolbench.steps.scorer import SCORER_STEPS
from poolbench.steps.steerer import STEERER_STEPS

#: The steps of the services by kind, in the order in which a run needs them.
SERVICE_STEPS: dict[str, Step[Any]] = by_kind(
    [*POOLER_STEPS, *EXTRACTOR_STEPS, *PROBER_STEPS, *STEERER_STEPS, *SCORER_STEPS]
)
#: Every step by kind.
STEPS: dict[str, Step[Any]] = {**by_kind(LOCAL_STEPS), **SERVICE_STEPS}


def get_step(kind: str) -> Step[Any]:
    """Return the step of this kind. Raise UnknownStepError with the nearest kinds."""
    if kind not in STEPS:
        raise UnknownStepError("step", kind, STEPS)
    return STEPS[kind]


def label_of(kind: str) -> str:
    """Return the name of a kind of task for progress and estimates. If the kind is unknown, return the kind."""
    return STEPS[kind].label if kind in STEPS else kind


def work_of(task: Task, inputs: Shapes) -> Work | None:
    """Return the work of a task of any kind, or None if the work is unknown."""
    return STEPS[task.kind].work_of(task, inputs) if task.kind in STEPS else None


def steps_version() -> str:
    """Return a hash of the versions of all steps and of the task schema.

    Driver and services with different hashes give different keys to the same work, or cannot read each other's tasks.
    """
    versions = {kind: step.version for kind, step in STEPS.items()}
    return digest({"schema": TASK_SCHEMA_VERSION, "steps": versions}, 12)
