"""A loop over a real folder store, a real folder queue and a real worker in a thread, for tests."""

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.servers.quiet import TasksOnly
from tests.waiting import PATIENCE_S

from poolbench.config import ModelRef
from poolbench.contracts.tasks import Task
from poolbench.errors import CellError
from poolbench.queue import Broker, TaskQueue
from poolbench.queue.deliveries import Deliveries
from poolbench.queue.leases import FolderLeases
from poolbench.queue.messages import queue_name
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker.service import Handler
from poolbench.worker.taskio import TaskIO
from poolbench.worker.worker import RetryTaskError, Worker
from poolbench_driver.cluster.session import Session
from poolbench_driver.config import RunConfig
from poolbench_driver.corpora.sources import LocalStep
from poolbench_driver.job import Job
from poolbench_driver.loop import Pace, RunLoop
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.stage import Plan, PlanFacts, PlannedWork

#: Looks often, and is patient: on a busy machine a worker needs time to take a task over.
FAST = Pace(vanished_s=60.0, max_vanished_s=60.0, tick_s=0.02, look_s=0.02, rare_look_s=0.02, outage_s=60.0)
#: For tests in which a message is lost, and one more than is needed does no harm.
HASTY = replace(FAST, vanished_s=0.4, max_vanished_s=0.8)


class Adder(TasksOnly):
    """Adds one to a number, or fails where its parameters say so."""

    name = "prober"

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {"prober.add": self.add}
        self.handled: list[str] = []

    def add(self, task: Task, io: TaskIO) -> None:
        self.handled.append(task.task_id)
        if status := task.params.get("fail"):
            raise CellError(status, "only 3 passages; 20 are needed")
        total = sum(io.table(role)["x"][0].as_py() for role in task.inputs)
        io.write_table("sum", pa.table({"x": [total + 1]}))


class Consumer(threading.Thread):
    """Takes messages as a replica does; drops the first ``lose`` of them, as a killed one would."""

    def __init__(self, queue: TaskQueue, worker: Worker, lose: int = 0) -> None:
        super().__init__(daemon=True)
        self.queue, self.worker, self.lose = queue, worker, lose
        self.taken: list[str] = []
        self.stop = threading.Event()

    def run(self) -> None:
        deliveries = Deliveries(self.queue.broker, queue_name(self.worker.service.name))
        while not self.stop.is_set():
            if (message := deliveries.next(0.01)) is None:
                continue
            self.taken.append(message.task_id)
            if len(self.taken) > self.lose:
                self._work(message.task)

    def _work(self, task: dict[str, Any]) -> None:
        try:
            self.worker.run(task)
        except RetryTaskError:
            return


@contextmanager
def consuming(consumers: Sequence[Consumer]) -> Iterator[None]:
    """Let consumers take messages within the block."""
    for consumer in consumers:
        consumer.start()
    try:
        yield
    finally:
        for consumer in consumers:
            consumer.stop.set()
        for consumer in consumers:
            consumer.join(PATIENCE_S)


@dataclass
class Notes:
    """A display that remembers."""

    finished: list[str] = field(default_factory=list)
    reused: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    num_ticks: int = 0

    def start(self, totals: Counter[str]) -> None:
        """Nothing to show."""

    def done(self, task: Task, *, reused: bool = False) -> None:
        (self.reused if reused else self.finished).append(task.task_id)

    def failed(self, task_id: str, kind: str, reason: str) -> None:
        self.failures[task_id] = reason

    def note(self, message: str) -> None:
        self.lines.append(message)

    def tick(self, in_flight: Mapping[str, Task]) -> None:
        self.num_ticks += 1

    def close(self) -> None:
        """Nothing to release."""


def add(output: str, *inputs: str, **params: Any) -> Task:
    return Task(
        kind="prober.add",
        inputs={f"x{n}": key for n, key in enumerate(inputs)},
        outputs={"sum": output},
        params=params,
    )


A, B, C = add("sum.a", "seed.one"), add("sum.b", "sum.a"), add("sum.c", "sum.a", "sum.b")


def plan_of(*tasks: Task) -> Plan:
    model = ModelInfo(ModelRef("demo", "somewhere", "local-0", "float32"), num_blocks=2, width=4)
    seed = LocalStep("seed.one", "seed", lambda: pa.table({"x": [1]}))
    work = PlannedWork({task.task_id: task for task in tasks}, {seed.key: seed})
    return Plan(RunConfig(), work, PlanFacts(model, "none", "0", "sums", 1.0))


@dataclass
class Bench:
    """Everything a loop needs, in one folder."""

    root: Path

    def __post_init__(self) -> None:
        self.artifacts = Artifacts(FolderStore(self.root / "store"))
        self.queue = TaskQueue(Broker(f"filesystem://{self.root}/queue"))
        self.leases = FolderLeases(self.root / "leases")
        self.service, self.notes = Adder(), Notes()
        self.consumer: Consumer | None = None

    def consume(self, lose: int = 0) -> Consumer:
        self.consumer = Consumer(self.queue, Worker(self.service, self.artifacts, self.leases), lose)
        self.consumer.start()
        return self.consumer

    def loop(self, *tasks: Task, pace: Pace = FAST, **options: Any) -> RunLoop:
        return RunLoop(plan_of(*tasks), self.artifacts, self.queue, self.leases, self.notes, pace=pace, **options)

    def value(self, key: str) -> int:
        return int(self.artifacts.read_table(key)["x"][0].as_py())


def job_of(bench: Bench, plan: Any) -> Job:
    """A run of a whole plan, from the first task to the report."""
    session = Session(None, bench.artifacts, bench.queue, bench.leases, None)  # type: ignore[arg-type]
    return Job(plan, session)
