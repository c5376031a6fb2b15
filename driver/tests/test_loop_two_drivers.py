"""Two drivers at once on overlapping runs, with several workers per service: they share the work, and nothing is lost.

Work is counted in executions of tasks, because time says little on a machine that is shared.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from driver.tests.conftest import SteeredArtifacts
from driver.tests.loop_bench import Consumer, Notes, consuming
from tests.servers import redis as redis_server
from tests.servers.quiet import TasksOnly
from tests.waiting import PATIENCE_S, wait_until

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import SERVICES
from poolbench.queue import Broker, TaskQueue, open_leases
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker.service import Handler
from poolbench.worker.taskio import TaskIO
from poolbench.worker.worker import Worker
from poolbench_driver.cluster.session import Session
from poolbench_driver.job import Job
from poolbench_driver.records import create_run
from poolbench_driver.suites.poolbench.plan import PoolBenchPlan

pytestmark = pytest.mark.lane(name="series")

Tables = dict[str, pa.Table]
STRATEGIES = ("A1_mean", "L5_keyword"), ("A1_mean", "W2_last_4")
WORKERS_PER_SERVICE = 2


@dataclass
class Log:
    """Which task was executed for which run."""

    entries: list[tuple[str, str]] = field(default_factory=list)
    holding: threading.Event | None = None  # tasks wait for it

    @property
    def executions(self) -> Counter[str]:
        return Counter(task_id for task_id, _ in self.entries)

    def of(self, run_id: str) -> set[str]:
        return {task_id for task_id, run in self.entries if run == run_id}


class Copier(TasksOnly):
    """A service that makes the tables of its tasks from copies, and notes each execution."""

    def __init__(self, name: str, kinds: set[str], tables: Tables, log: Log) -> None:
        self.name, self.tables, self.log = name, tables, log
        self.handlers: dict[str, Handler] = dict.fromkeys(kinds, self.copy)

    def copy(self, task: Task, io: TaskIO) -> None:
        self.log.entries.append((task.task_id, task.run_id))
        if self.log.holding:
            self.log.holding.wait(PATIENCE_S)
        for role in task.inputs:
            io.table(role)  # fails if it is not there
        for role in list(io.missing):
            io.write_table(role, self.tables[task.outputs[role]])


@dataclass
class Cluster:
    """A store without results, a broker, and workers of all services in threads."""

    root: Path
    url: str
    log: Log = field(default_factory=Log)

    def session(self) -> Session:
        """What one driver uses: connections of its own."""
        artifacts, broker = Artifacts(FolderStore(self.root / "store")), Broker(self.url)
        return Session(None, artifacts, TaskQueue(broker), open_leases(broker), None)  # type: ignore[arg-type]

    @contextmanager
    def workers(self, kinds: set[str], tables: Tables) -> Iterator[None]:
        consumers = []
        for service in SERVICES * WORKERS_PER_SERVICE:
            own = {kind for kind in kinds if kind.startswith(f"{service}.")}
            session = self.session()
            worker = Worker(Copier(service, own, tables, self.log), session.artifacts, session.leases)  # type: ignore[arg-type]
            consumers.append(Consumer(session.queue, worker))
        with consuming(consumers):
            yield

    def left_over(self) -> int:
        """The number of messages and dead letters."""
        queue = self.session().queue
        return sum(queue.depth(name) + queue.num_dead_letters(name) for name in SERVICES)

    def start(self, plan: PoolBenchPlan, number: int) -> Driver:
        """Starts a driver with a folder, and a run id, of its own."""
        driver = Driver(Job(plan, self.session()), self.root / f"runs{number}", number)
        driver.start()
        return driver


class Driver(threading.Thread):
    """One driver, from the first task to the report."""

    def __init__(self, job: Job, output: Path, number: int) -> None:
        super().__init__(daemon=True)
        self.job, self.notes, self.done, self.error = job, Notes(), False, ""
        self.folder = create_run(output, job.config.model_copy(update={"seed": number}))

    def run(self) -> None:
        try:
            self.done = self.job.run(self.folder, self.notes).done
        except Exception as error:  # shown by the test
            self.error = repr(error)

    def digest(self) -> str:
        """Waits for the end; returns the results digest."""
        self.join(PATIENCE_S)
        assert self.done, self.error
        return str(self.folder.read_state()["results_digest"])


@dataclass
class Work:
    """Two overlapping plans, and the tables of all their artifacts."""

    plans: list[PoolBenchPlan]
    tables: Tables

    @property
    def kinds(self) -> set[str]:
        return {task.kind for plan in self.plans for task in plan.tasks.values()}

    def tasks(self, number: int) -> set[str]:
        return set(self.plans[number].tasks)


@pytest.fixture(scope="module")
def work(steered_in: Callable[..., SteeredArtifacts], tmp_path_factory: pytest.TempPathFactory) -> Work:
    root = Path(tmp_path_factory.mktemp("made"))
    plans, tables = [], {}
    for strategies in STRATEGIES:
        made = steered_in(root, strategies=strategies).write(lambda key, *_: 0.3 + (len(key) % 7) / 20)
        plans.append(made.plan)
        for key in made.plan.keys:
            if not made.artifacts.exists(key):
                made.artifacts.write_table(key, pa.table({"unread": [1]}))
            tables[key] = made.artifacts.read_table(key)
    for plan in plans:
        for key, step in plan.local.items():
            object.__setattr__(step, "build", lambda key=key: tables[key])
    return Work(plans, tables)


@pytest.fixture(params=redis_server.BROKERS)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with redis_server.broker(request.param, tmp_path) as url:
        yield Cluster(tmp_path, url)


def alone(root: Path, work: Work, number: int) -> tuple[str, int]:
    """Returns results digest and number of executions of one driver that has a cluster to itself."""
    cluster = Cluster(root, f"filesystem://{root}/queue")
    with cluster.workers(work.kinds, work.tables):
        digest = cluster.start(work.plans[number], number).digest()
    return digest, sum(cluster.log.executions.values())


def test_two_drivers_share_the_work_and_get_the_results_of_one(cluster: Cluster, work: Work, tmp_path: Path) -> None:
    one, two = work.tasks(0), work.tasks(1)
    assert one & two and one - two and two - one
    single = [alone(tmp_path / f"alone{number}", work, number) for number in (0, 1)]
    assert [count for _, count in single] == [len(one), len(two)]
    with cluster.workers(work.kinds, work.tables):
        drivers = [cluster.start(plan, number) for number, plan in enumerate(work.plans)]
        assert [driver.digest() for driver in drivers] == [digest for digest, _ in single]
        wait_until(lambda: cluster.left_over() == 0)
    assert cluster.log.executions == Counter(one | two)  # each task of both exactly once
    first, second = (cluster.log.of(driver.folder.id) for driver in drivers)
    assert one - two <= first <= one and two - one <= second <= two and not first & second


def test_a_second_driver_waits_for_what_is_in_work(cluster: Cluster, work: Work) -> None:
    """Tasks of the first driver are held while they are in work; the second one needs the same and looks often."""
    cluster.log.holding = threading.Event()
    with cluster.workers(work.kinds, work.tables):
        first = cluster.start(work.plans[0], 0)
        wait_until(lambda: cluster.log.entries)
        second = cluster.start(work.plans[1], 1)
        wait_until(lambda: second.notes.num_ticks >= 5)
        cluster.log.holding.set()
        first.digest(), second.digest()
        wait_until(lambda: cluster.left_over() == 0)
    assert cluster.log.executions == Counter(work.tasks(0) | work.tasks(1))
