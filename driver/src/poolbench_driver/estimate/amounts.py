"""The work and bytes of every task of a plan, and the order in which its tasks are sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from poolbench.contracts.tasks import Task
from poolbench.contracts.work import TEXT_TOKEN_BYTES, Shape, Sized, Work
from poolbench.steps import get_step
from poolbench_driver.stages.stage import Plan, PlanFacts, PlannedWork

if TYPE_CHECKING:
    from poolbench_driver.corpora.sources import LocalStep

#: Compression moves the size of a table between these factors.
_LOW, _HIGH = 0.5, 1.5


class Range(NamedTuple):
    """An expected value, and the bounds that it should lie within."""

    expected: float
    low: float
    high: float

    @classmethod
    def around(cls, expected: float, low: float, high: float) -> Range:
        """Return a range from factors of the expected value."""
        return cls(expected, expected * low, expected * high)

    def times(self, factor: float) -> Range:
        """Return the quantity multiplied by a known number."""
        return Range(self.expected * factor, self.low * factor, self.high * factor)

    def rounded(self) -> dict[str, float]:
        """Return the values with four significant digits, as JSON output shows them."""
        return {name: float(f"{value:.4g}") for name, value in self._asdict().items()}


def total(ranges: Iterable[Range]) -> Range:
    """Return the sum. Its bounds are the sums of the bounds, because errors of an estimate are rarely independent."""
    parts = list(ranges)
    return Range(*(sum(getattr(part, name) for part in parts) for name in Range._fields))


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
    """Return the amount of each task by id. The plan has each task after the tasks that make its inputs."""
    shapes: dict[str, Shape] = {key: Shape(step.count()) for key, step in plan.local.items()}
    amounts: dict[str, Amount] = {}
    for task in plan.tasks.values():
        inputs = {role: shapes[key] for role, key in task.inputs.items() if key in shapes}
        step = get_step(task.kind)
        sized = step.sized(task, inputs, plan.facts.model.width, plan.facts.passage_tokens)
        outputs = step.shapes_of(sized)
        shapes |= {task.outputs[role]: shape for role, shape in outputs.items()}
        num_bytes = Range.around(sum(shape.num_bytes for shape in outputs.values()), _LOW, _HIGH)
        amounts[task.task_id] = Amount(sized, step.work_of(task, inputs), num_bytes)
    return amounts


def local_bytes(facts: PlanFacts, step: LocalStep) -> Range:
    """Return the bytes that the driver writes for a local step."""
    return Range.around(Shape(step.count(), row_bytes=facts.passage_tokens * TEXT_TOKEN_BYTES).num_bytes, _LOW, _HIGH)


Planned = TypeVar("Planned", bound=Plan)


def ordered(plan: Planned) -> Planned:
    """Order the tasks of a plan by their longest chains. Of equally long chains, the task with most work comes first.

    The length of a chain is its number of tasks, not a time, so that the order is the same on every machine.
    """
    length, amounts = chains(plan.tasks.values(), dict.fromkeys(plan.tasks, 1.0)), amounts_of(plan)
    work = {name: amount.work.amount if amount.work else 0.0 for name, amount in amounts.items()}
    tasks = sorted(plan.tasks.items(), key=lambda item: (-length[item[0]], -work[item[0]]))
    return replace(plan, work=PlannedWork(dict(tasks), plan.local))


def chains(tasks: Iterable[Task], seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of the longest chain of tasks that begins with each task, by its id.

    Args:
        tasks: Tasks in order. Each task comes after the tasks that make its inputs.
        seconds: Time of each task by id.
    """
    planned = list(tasks)
    makers = {key: task.task_id for task in planned for key in task.outputs.values()}
    after: dict[str, float] = defaultdict(float)  # the longest chain behind a task
    chain_s: dict[str, float] = {}
    for task in reversed(planned):
        chain_s[task.task_id] = seconds[task.task_id] + after[task.task_id]
        for key in task.inputs.values():
            if key in makers:
                after[makers[key]] = max(after[makers[key]], chain_s[task.task_id])
    return chain_s


def makespan_s(tasks: Iterable[Task], seconds: Mapping[str, float], replicas: Mapping[str, int]) -> float:
    """Return the time at which the last task ends, if the replicas of each service take ready tasks in order.

    Args:
        tasks: As in `chains`. Inputs that no task makes are taken to exist.
        seconds: Time of each task by id.
        replicas: Number of replicas of each service.
    """
    planned, idle, ready = list(tasks), dict(replicas), defaultdict[str, list[int]](list)
    makers = {key: place for place, task in enumerate(planned) for key in task.outputs.values()}
    awaited = [{makers[key] for key in task.inputs.values() if key in makers} for task in planned]
    followers = defaultdict[int, list[int]](list)
    for place, before in enumerate(awaited):
        for maker in before:
            followers[maker].append(place)
        if not before:
            heappush(ready[planned[place].service], place)
    at_work, now_s = list[tuple[float, int]](), 0.0
    while True:
        for service, places in ready.items():
            while places and idle[service]:
                place = heappop(places)
                idle[service] -= 1
                heappush(at_work, (now_s + seconds[planned[place].task_id], place))
        if not at_work:
            return now_s
        now_s, ended = heappop(at_work)
        idle[planned[ended].service] += 1
        for place in followers[ended]:
            awaited[place].discard(ended)
            if not awaited[place]:
                heappush(ready[planned[place].service], place)
