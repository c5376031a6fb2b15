"""Simulated replicas: real workers with real leases, artifacts and manifests, whose handlers let time pass."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from poolbench.contracts.tables import FLUENCY, TEXTS
from poolbench.contracts.tasks import Task
from poolbench.queue import Broker, LeaseStore, TaskQueue
from poolbench.queue.affinity import Affinity
from poolbench.queue.deliveries import LOOK_AGAIN_S, Deliveries
from poolbench.queue.messages import queue_name
from poolbench.steps import SERVICE_STEPS, scorer, steerer
from poolbench.storage import Artifacts
from poolbench.worker.service import Handler
from poolbench.worker.taskio import TaskIO
from poolbench.worker.worker import Worker
from poolbench_driver.estimate.estimate import GPU_SERVICES
from scaling.clock import Actor, SimulatedClock

#: Seconds from sending a message until an idle consumer has it: half of the folder broker's polling interval.
PICKUP_S = 0.05
_DONE_S = 1e-6
_SMALL = pa.table({"x": [0]})


@dataclass(frozen=True)
class Times:
    """Seconds of each task by id, and of loading a model by service; how many of them were recorded."""

    tasks: Mapping[str, float]
    loading: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, int] = field(default_factory=dict)


@dataclass
class Usage:
    """What the replicas did, in simulated seconds."""

    busy_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # by service
    loading_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    loads: Counter[str] = field(default_factory=Counter)  # models that were loaded, by service
    executed: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # times by task id

    def figures(self) -> dict[str, Any]:
        """Return all of it for the report."""
        return {
            "tasks": len(self.executed),
            "executed_twice": sum(times > 1.5 for times in self.executed.values()),
            "busy_s": dict(self.busy_s),
            "loading_s": dict(self.loading_s),
            "loads": dict(self.loads),
        }


class Spender(Protocol):
    """Lets the time of tasks pass: simulated, or real."""

    def spend(self, task: Task, share: float) -> None:
        """Let a share of the time of a task pass."""


class Sleeper:
    """A service that lets the time of a task pass, and writes small outputs."""

    def __init__(self, name: str, replica: Spender) -> None:
        self.name, self._replica = name, replica
        kinds = [kind for kind in SERVICE_STEPS if kind.startswith(f"{name}.")]
        self.handlers: Mapping[str, Handler] = dict.fromkeys(kinds, self._work)

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
    """Counts the waiting messages, and wakes idle replicas when one is sent, so that none polls an empty queue.

    A poll of an empty queue takes a Redis server up to .1 s of real time, however short the timeout of the request is.
    """

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._idle: dict[str, list[Actor]] = defaultdict(list)
        self._waiting: Counter[str] = Counter()  # messages by service

    def any_waiting(self, service: str) -> bool:
        """Return whether messages wait for a service."""
        return self._waiting[service] > 0

    def taken(self, service: str) -> None:
        """Count a message that a replica took."""
        self._waiting[service] -= 1

    def wait(self, service: str) -> None:
        """Wait until a message is sent to a service, or for a moment if messages were left to other replicas."""
        me = self._clock.me()
        self._idle[service].append(me)
        if self.any_waiting(service):
            self._clock.sleep(LOOK_AGAIN_S)
        else:
            self._clock.wait()
        if me in self._idle[service]:
            self._idle[service].remove(me)

    def sent(self, service: str) -> None:
        """Count a message, and wake an idle replica; all of them where each may leave the message to others."""
        self._waiting[service] += 1
        idle = self._idle[service]
        woken = idle[:] if service in GPU_SERVICES else idle[:1]
        for replica in woken:
            self._clock.wake(replica, PICKUP_S)
        del idle[: len(woken)]


class NotifyingQueue(TaskQueue):
    """The real queue; each message that is sent wakes a replica."""

    def __init__(self, broker: Broker, switchboard: Switchboard) -> None:
        super().__init__(broker)
        self._switchboard = switchboard

    def send(self, task: Task) -> None:
        super().send(task)
        self._switchboard.sent(task.service)


class Device:
    """A GPU, or processors: the tasks on it pass at an equal share of its speed, as time slices of a GPU do."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._left_s: dict[Actor, float] = {}
        self._seen_s = 0.0
        self.num_in_work = 0  # tasks, with those that load a model

    def work(self, seconds: float) -> None:
        """Let the calling thread work as long as it would take alone; longer beside others."""
        me = self._clock.me()
        self._advance()
        self._left_s[me] = seconds
        self._others_look_again(me)
        while self._left_s[me] > _DONE_S:
            self._clock.sleep(self._left_s[me] * len(self._left_s))
            self._advance()
        del self._left_s[me]
        self._others_look_again(me)

    def _advance(self) -> None:
        """Take off what every task has done since the last call."""
        passed_s = self._clock.event_s - self._seen_s
        self._seen_s = self._clock.event_s
        for actor in self._left_s:
            self._left_s[actor] -= passed_s / len(self._left_s)

    def _others_look_again(self, me: Actor) -> None:
        for actor in self._left_s:
            if actor is not me:
                self._clock.wake(actor, 0.0)


class Replica:
    """A replica of one service on a device, which it may share with replicas of others."""

    def __init__(
        self, service: str, device: Device, clock: SimulatedClock, switchboard: Switchboard, times: Times, usage: Usage
    ) -> None:
        self.service = service
        self._device, self._clock, self._switchboard = device, clock, switchboard
        self._times, self._usage = times, usage
        self.loaded = ""  # id of the language model

    def serve(self, queue: TaskQueue, artifacts: Artifacts, leases: LeaseStore) -> None:
        """Take messages and execute them, until the simulation ends."""
        crowded, no_pause = (lambda: self._device.num_in_work > 0), (lambda _: None)  # `Switchboard.wait` pauses
        affinity = Affinity(lambda: self.loaded, self._clock.now_s, crowded=crowded)
        deliveries = Deliveries(queue.broker, queue_name(self.service), affinity, self._clock.now_s, sleep=no_pause)
        worker = Worker(Sleeper(self.service, self), artifacts, leases)
        while True:
            waits = self._switchboard.any_waiting(self.service)
            message = deliveries.next(0.0) if waits else None
            if message is None:
                self._switchboard.wait(self.service)
                continue
            self._switchboard.taken(self.service)
            self._device.num_in_work += 1
            try:
                worker.run(message.task)
            finally:
                self._device.num_in_work -= 1

    def spend(self, task: Task, share: float) -> None:
        """Let a share of the time of a task pass, and before it the time of loading another model than the last one.

        Loading takes no time of the device: it reads files, compiles and captures graphs.
        """
        model = str(task.params.get("model", ""))
        if model and self.loaded != model:
            self.loaded = model
            seconds = self._times.loading.get(self.service, 0.0)
            self._clock.sleep(seconds)
            self._usage.loading_s[self.service] += seconds
            self._usage.loads[self.service] += 1
        seconds = share * self._times.tasks[task.task_id]
        self._device.work(seconds)
        self._usage.busy_s[self.service] += seconds
        self._usage.executed[task.task_id] += share
