"""Stages of a plan, frozen values of artifact keys with the tasks and local steps that make them; and the plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from poolbench.config.base import StrictModel
from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import MANIFEST_FILE
from poolbench.steps.base import Keys, Step
from poolbench.storage import Artifacts
from poolbench_driver.config import RunConfig

if TYPE_CHECKING:
    from poolbench_driver.corpora.sources import LocalStep
    from poolbench_driver.models import ModelInfo

Params = TypeVar("Params", bound=StrictModel)


@dataclass(frozen=True)
class PlannedWork:
    """Tasks by id, each after the tasks that make its inputs, and local steps by key."""

    tasks: Mapping[str, Task] = field(default_factory=dict)
    local: Mapping[str, LocalStep] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """A stage of a plan. Subclasses add the keys of the artifacts that the stage makes."""

    work: PlannedWork


class Draft:
    """Collects the tasks and local steps of one stage in `work` while the stage is planned."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._local: dict[str, LocalStep] = {}
        self.work = PlannedWork(self._tasks, self._local)

    def add(self, step: Step[Params], params: Params, inputs: Keys, outputs: Iterable[str] | Keys) -> dict[str, str]:
        """Add a task and return the keys of its outputs by role. `outputs` holds roles, or keys by role."""
        task = step.task(params, inputs, outputs)
        self._tasks[task.task_id] = task
        return task.outputs

    def add_local(self, step: LocalStep) -> str:
        """Add a step that the driver executes itself, and return its key."""
        self._local[step.key] = step
        return step.key


def committed_keys(artifacts: Artifacts) -> set[str]:
    """Return the keys of all committed artifacts, with one listing instead of one request per key."""
    return {key for key, info in artifacts.objects() if info.path.endswith(f"/{MANIFEST_FILE}")}


#: Notes that a run prints before it starts.
_SHOWN_NOTES = 5


def first_notes(notes: Sequence[str]) -> tuple[str, ...]:
    """Return the first notes and, if there are more, a note with the number of the remaining notes."""
    first, more = tuple(notes[:_SHOWN_NOTES]), len(notes) - _SHOWN_NOTES
    return (*first, f"{more} more notes") if more > 0 else first


@dataclass(frozen=True)
class PlanFacts:
    """The facts about a plan that the frame reads, whichever suite made it."""

    model: ModelInfo  # the model that is measured
    dataset: str  # the texts, as result rows name them
    dataset_revision: str  # their revision
    task: str  # value of the column `task`
    passage_tokens: float  # expected tokens of a passage
    imported: Mapping[str, str] = field(default_factory=dict)  # commands that import artifacts again, by key
    notes: tuple[str, ...] = ()  # what was left out or is not known; the run says the first ones when it starts


@dataclass(frozen=True)
class Plan:
    """The work of a run: first the local steps, then the tasks, each after the tasks that make its inputs."""

    config: RunConfig  # the settings, with every name spelled out
    work: PlannedWork
    facts: PlanFacts  # what estimates, rows and repairs read of it

    @staticmethod
    def of(config: RunConfig, facts: PlanFacts, *stages: Stage) -> Plan:
        """Return a plan of these stages, in their order."""
        return Plan(config, joined(stages), facts)

    @property
    def tasks(self) -> Mapping[str, Task]:
        """Return tasks by id."""
        return self.work.tasks

    @property
    def local(self) -> Mapping[str, LocalStep]:
        """Return the local steps by key."""
        return self.work.local

    @cached_property
    def producers(self) -> Mapping[str, Task]:
        """Return the task that produces each key."""
        return {key: task for task in self.tasks.values() for key in task.outputs.values()}

    @cached_property
    def keys(self) -> frozenset[str]:
        """Return the keys of all artifacts that the plan makes or imports."""
        return frozenset([*self.producers, *self.local, *self.facts.imported])


def joined(stages: Iterable[Stage]) -> PlannedWork:
    """Combine the work of several stages. Work that two stages share is planned once, at its first position."""
    tasks: dict[str, Task] = {}
    local: dict[str, LocalStep] = {}
    for stage in stages:
        for task_id, task in stage.work.tasks.items():
            tasks.setdefault(task_id, task)
        for key, step in stage.work.local.items():
            local.setdefault(key, step)
    return PlannedWork(tasks, local)
