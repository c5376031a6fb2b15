"""Simulated replicas: real workers with real leases, artifacts and manifests, whose handlers let time pass."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty
from typing import Any

import pyarrow as pa

from poolbench.contracts.tables import FLUENCY, TEXTS
from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import SERVICES
from poolbench.queue import Broker, LeaseStore, TaskQueue
from poolbench.queue.envelope import Message, queue_name, understand
from poolbench.runtime.service import Handler
from poolbench.runtime.taskio import TaskIO
from poolbench.runtime.worker import Worker
from poolbench.steps import SERVICE_STEPS, scorer, steerer
from poolbench.storage import Artifacts
from poolbench_driver.estimate.hardware import GPU_SERVICES
from scaling.clock import Actor, SimulatedClock

#: Seconds from sending a message until an idle consumer has it: half of the folder broker's polling interval.
PICKUP_S = 0.05
_SMALL = pa.table({"x": [0]})


@dataclass(frozen=True)
class Times:
    """Seconds of each task by id, and of loading a model by service."""

    tasks: Mapping[str, float]
    loading: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Usage:
    """What the replicas did, in simulated seconds."""

    busy_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # by service
    loading_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    executed: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # times by task id


class Sleeper:
    """A service that lets the time of a task pass, and writes small outputs."""

    def __init__(self, name: str, replica: Replica) -> None:
        self.name, self._replica = name, replica
        kinds = [kind for kind in SERVICE_STEPS if kind.startswith(f"{name}.")]
        self.handlers: dict[str, Handler] = dict.fromkeys(kinds, self._work)

    def _work(self, task: Task, io: TaskIO) -> None:
        parts = _parts(task)
        for roles in parts:
            self._replica.spend(task, 1 / len(parts))
            for role in roles:
                if role == scorer.SCORER():
                    io.write_files(role, {"weights.safetensors": b"0", "config.json": b"{}"}, {"base": "minilm"})
                elif role in io.missing:
                    io.write_table(role, _table(role))

    def routes(self, router: Any) -> None:
        """No verbs."""

    def health(self) -> dict[str, Any]:
        return {}


def _parts(task: Task) -> list[list[str]]:
    """Return the outputs of a task in the groups that are written together: probes of one strategy after another."""
    if task.service != "prober":
        return [sorted(task.outputs)]
    groups: dict[str, list[str]] = defaultdict(list)
    for role in task.outputs:
        groups[role.partition("/")[2]].append(role)
    return list(groups.values())


def _table(role: str) -> pa.Table:
    if steerer.TEXTS.parse(role):
        return TEXTS.empty_table()
    return FLUENCY.empty_table() if steerer.FLUENCY.parse(role) else _SMALL


class Switchboard:
    """Wakes idle replicas when a message is sent, so that none has to poll in simulated time."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._idle: deque[tuple[Actor, Sequence[str]]] = deque()

    def wait(self, services: Sequence[str]) -> None:
        """Wait until a message is sent to one of these services."""
        self._idle.append((self._clock.me(), services))
        self._clock.wait()

    def sent(self, service: str) -> None:
        """Wake the replica of a service that has been idle for the longest time."""
        for each in self._idle:
            if service in each[1]:
                self._idle.remove(each)
                self._clock.wake(each[0], PICKUP_S)
                return


class NotifyingQueue(TaskQueue):
    """The real queue; each message that is sent wakes a replica."""

    def __init__(self, broker: Broker, switchboard: Switchboard) -> None:
        super().__init__(broker)
        self._switchboard = switchboard

    def send(self, task: Task) -> None:
        super().send(task)
        self._switchboard.sent(task.service)


class Replica:
    """A place for work: one service, or a GPU that several take turns on."""

    def __init__(
        self, services: Sequence[str], clock: SimulatedClock, switchboard: Switchboard, times: Times, usage: Usage
    ) -> None:
        self._services, self._clock, self._switchboard = list(services), clock, switchboard
        self._times, self._usage = times, usage
        self._loaded: tuple[str, str] | None = None  # service and language model

    def serve(self, queue: TaskQueue, artifacts: Artifacts, leases: LeaseStore) -> None:
        """Take messages and execute them, until the simulation ends."""
        channel = queue.broker.celery_app().connection_for_read().default_channel
        workers = {name: Worker(Sleeper(name, self), artifacts, leases) for name in self._services}
        while True:
            for name in sorted(self._services, key=self._preference):
                try:
                    message = channel._get(queue_name(name))
                except Empty:
                    continue
                found = understand(json.dumps(message).encode())
                assert isinstance(found, Message)
                workers[name].run(found.task)
                break
            else:
                self._switchboard.wait(self._services)

    def _preference(self, service: str) -> bool:
        """Return False, which sorts first, for the service whose model is loaded."""
        return self._loaded is None or self._loaded[0] != service

    def spend(self, task: Task, share: float) -> None:
        """Let a share of the time of a task pass, and before it the time of loading another model than the last one."""
        service, model = task.service, str(task.params.get("model", ""))
        if model and self._loaded != (service, model):
            seconds = self._times.loading.get(service, 0.0)
            self._clock.sleep(seconds)
            self._usage.loading_s[service] += seconds
        self._loaded = (service, model or self._model_of(service))
        seconds = share * self._times.tasks[task.task_id]
        self._clock.sleep(seconds)
        self._usage.busy_s[service] += seconds
        self._usage.executed[task.task_id] += share

    def _model_of(self, service: str) -> str:
        """Return the model that a service has loaded here; a task without one leaves it as it is."""
        return self._loaded[1] if self._loaded and self._loaded[0] == service else ""


def shipped_layout(gpus: int, _: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Return the replicas that the overlays deploy: one per service, and steerers on all other GPUs."""
    cpu = [(name,) for name in SERVICES if name not in GPU_SERVICES]
    if gpus < 3:
        return [*cpu, *([GPU_SERVICES] * gpus)]
    return [*cpu, ("extractor",), ("scorer",), *([("steerer",)] * (gpus - 2))]


def shared_layout(gpus: int, _: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Return replicas that take turns on every GPU, and as many replicas of the services without GPU."""
    cpu = [(name,) for name in SERVICES if name not in GPU_SERVICES]
    return [*(cpu * gpus), *([GPU_SERVICES] * gpus)]


def split_layout(gpus: int, work_s: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Return GPUs divided between the services in proportion to their work, and as many poolers and probers."""
    if gpus < len(GPU_SERVICES):
        return shared_layout(gpus, work_s)
    total_s = sum(work_s[name] for name in GPU_SERVICES)
    counts = {name: max(1, int(gpus * work_s[name] / total_s)) for name in GPU_SERVICES}
    while sum(counts.values()) != gpus:  # the rest goes where most work is left per GPU, or is taken where least is
        step = 1 if sum(counts.values()) < gpus else -1
        movable = [name for name in GPU_SERVICES if counts[name] + step > 0]
        chosen = max(movable, key=lambda name: step * work_s[name] / counts[name])
        counts[chosen] += step
    cpu = [(name,) for name in SERVICES if name not in GPU_SERVICES]
    return [*(cpu * gpus), *((name,) for name in GPU_SERVICES for _ in range(counts[name]))]
