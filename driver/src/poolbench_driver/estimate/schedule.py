"""When the tasks of a plan would run: a list schedule of their expected times over the replicas of each service."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import SERVICES
from poolbench_driver.estimate.hardware import GPU_SERVICES


@dataclass(frozen=True)
class Capacity:
    """How many tasks run at once."""

    replicas: Mapping[str, int]  # by service
    gpus: int = 0  # that extractor, scorer and steerer share; 0: they have none

    @classmethod
    def of(cls, gpus: int, replicas: Mapping[str, int] | None = None) -> Capacity:
        """Return what a cluster with so many GPUs deploys by default, with the given numbers of replicas instead.

        Extractor and scorer have one replica each, and steerers the other GPUs. With fewer than three GPUs they share.
        """
        default = dict.fromkeys(SERVICES, 1) | {"steerer": max(1, gpus - 2)}
        return cls(default | dict(replicas or {}), gpus)


@dataclass
class Schedule:
    """Start and end of what was scheduled, in seconds."""

    end_s: float = 0.0
    starts: dict[str, float] = field(default_factory=dict)  # by task id
    ends: dict[str, float] = field(default_factory=dict)


class _Machine:
    """The free replicas, each of which loads what it needs before its first task."""

    def __init__(self, capacity: Capacity, start_s: Callable[[str], float]) -> None:
        self.warm: dict[str, int] = defaultdict(int)  # free replicas that have worked before
        self.cold = dict(capacity.replicas)
        self.gpus = capacity.gpus if capacity.gpus else None
        self.start_s = start_s

    def take(self, service: str) -> float | None:
        """Return the seconds until a replica can start on a task; None if none is free."""
        uses_gpu = service in GPU_SERVICES and self.gpus is not None
        if uses_gpu and not self.gpus:
            return None
        if self.warm[service]:
            self.warm[service] -= 1
            waits = 0.0
        elif self.cold.get(service, 0):
            self.cold[service] -= 1
            waits = self.start_s(service)
        else:
            return None
        if uses_gpu and self.gpus is not None:
            self.gpus -= 1
        return waits

    def give_back(self, service: str) -> None:
        self.warm[service] += 1
        if service in GPU_SERVICES and self.gpus is not None:
            self.gpus += 1


def schedule(
    tasks: Iterable[Task],
    seconds: Mapping[str, float],
    capacity: Capacity,
    *,
    present: Collection[str] = (),
    start_s: Callable[[str], float] = lambda _: 0.0,
) -> Schedule:
    """Return when each task would run if every service took its ready tasks in the order of the plan.

    Args:
        tasks: Tasks in sending order.
        seconds: Time of each task by id.
        capacity: Replicas and GPUs.
        present: Keys that need not be made.
        start_s: Seconds until a replica of a service can take its first task.
    """
    todo = {task.task_id: task for task in tasks}
    made = {key for task in todo.values() for key in task.outputs.values()} - set(present)
    missing = {task_id: len(made.intersection(task.inputs.values())) for task_id, task in todo.items()}
    readers: dict[str, list[str]] = defaultdict(list)
    for task_id, task in todo.items():
        for key in made.intersection(task.inputs.values()):
            readers[key].append(task_id)
    order = {task_id: number for number, task_id in enumerate(todo)}
    ready: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for task_id in (task_id for task_id, number in missing.items() if not number):
        heapq.heappush(ready[todo[task_id].service], (order[task_id], task_id))
    machine, result = _Machine(capacity, start_s), Schedule()
    running: list[tuple[float, int, str]] = []
    now_s = 0.0
    while True:
        _start_ready(ready, machine, todo, seconds, running, result, now_s)
        if not running:
            return result
        now_s, _, task_id = heapq.heappop(running)
        result.end_s = result.ends[task_id] = now_s
        machine.give_back(todo[task_id].service)
        for reader in _now_ready(todo[task_id], made, readers, missing):
            heapq.heappush(ready[todo[reader].service], (order[reader], reader))


def _start_ready(
    ready: Mapping[str, list[tuple[int, str]]],
    machine: _Machine,
    todo: Mapping[str, Task],
    seconds: Mapping[str, float],
    running: list[tuple[float, int, str]],
    result: Schedule,
    now_s: float,
) -> None:
    """Start tasks until every service lacks tasks or replicas; services take turns where they share GPUs."""
    turns = deque(sorted(service for service, waiting in ready.items() if waiting))
    while turns:
        service = turns.popleft()
        waits = machine.take(service)
        if waits is None:
            continue
        number, task_id = heapq.heappop(ready[service])
        result.starts[task_id] = now_s + waits
        heapq.heappush(running, (now_s + waits + seconds[task_id], number, task_id))
        if ready[service]:
            turns.append(service)


def _now_ready(
    task: Task, made: Collection[str], readers: Mapping[str, list[str]], missing: dict[str, int]
) -> Iterable[str]:
    for key in task.outputs.values():
        if key in made:
            for reader in readers.get(key, ()):
                missing[reader] -= 1
                if not missing[reader]:
                    yield reader


def chains(tasks: Iterable[Task], seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of the longest chain of tasks that begins with each task, by its id.

    Args:
        tasks: Tasks in an order in which each comes after those that make its inputs.
        seconds: Time of each task by id.
    """
    planned = list(tasks)
    makers = {key: task.task_id for task in planned for key in task.outputs.values()}
    after: dict[str, float] = defaultdict(float)  # the longest chain behind a task
    found: dict[str, float] = {}
    for task in reversed(planned):
        found[task.task_id] = seconds[task.task_id] + after[task.task_id]
        for key in task.inputs.values():
            if key in makers:
                after[makers[key]] = max(after[makers[key]], found[task.task_id])
    return found
