"""A run whose like was executed before: workers record the work that the plan expects, and the estimate is near."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from driver.tests.loop_bench import FAST, Consumer, Notes, consuming
from driver.tests.test_estimate import DEMO

from poolbench.contracts.tables import FLUENCY, TEXTS, table_from_rows, vector_column
from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import SERVICES
from poolbench.pooling.registry import STRATEGIES
from poolbench.queue import Broker, TaskQueue
from poolbench.queue.leases import FolderLeases
from poolbench.steps import SERVICE_STEPS, scorer, steerer
from poolbench.steps.work import Shape
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker.service import Handler
from poolbench.worker.taskio import TaskIO
from poolbench.worker.worker import Worker
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.corpora.sources import LocalStep
from poolbench_driver.estimate import Cluster, read_rates
from poolbench_driver.estimate.amounts import amounts_of
from poolbench_driver.estimate.estimate import estimate_tasks
from poolbench_driver.loop import RunLoop
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Plan, PlannedWork
from poolbench_driver.suites.poolbench.plan import make_plan

#: Seconds that the simulated services take for one unit of work: every task takes some hundredths of a second.
SECONDS = {
    "passages": 1e-4,
    "vectors": 1e-4,
    "tokens": 1e-5,
    "scores": 2e-4,
    "texts": 1e-4,
}


class Sized:
    """A service that reads all inputs, takes a time in proportion to its work, and writes outputs of the right size."""

    def __init__(self, name: str, shapes: dict[str, Shape], seconds: dict[str, float]) -> None:
        self.name, self._shapes, self._seconds = name, shapes, seconds
        self.handlers: dict[str, Handler] = {
            kind: self._work for kind in SERVICE_STEPS if kind.partition(".")[0] == name
        }

    def _work(self, task: Task, io: TaskIO) -> None:
        for role in task.inputs:
            (io.manifest if role == scorer.SCORER() or scorer.SCORERS.parse(role) else io.table)(role)
        time.sleep(self._seconds[task.task_id])
        for role in sorted(io.missing):
            if role == scorer.SCORER():
                io.write_files(role, {"weights.safetensors": b"0"}, meta={"base": "minilm"})
            else:
                io.write_table(role, table_of(role, self._shapes.get(task.outputs[role], Shape(1))))

    def routes(self, router: Any) -> None:
        """No verbs."""

    def health(self) -> dict[str, Any]:
        return {}


def table_of(role: str, shape: Shape) -> pa.Table:
    ids = [{"text_id": str(number)} for number in range(shape.rows)]
    if steerer.TEXTS.parse(role) or role == steerer.CONTINUATIONS():
        return table_from_rows(ids, TEXTS)
    if steerer.FLUENCY.parse(role):
        return table_from_rows(ids, FLUENCY)
    if shape.width:
        return pa.table({"vector": vector_column(np.zeros((shape.rows, shape.width)))})
    return pa.table({"x": list(range(shape.rows))})


def numbered(step: LocalStep) -> pa.Table:
    return pa.table({"x": list(range(step.count()))})


def small_plan(seed: int) -> Plan:
    settings = {"concepts": ["contrast"], "layers": [2], "seed": seed, "corpus": {"seed": seed}, "limit": 60}
    config = load_run_config(None, {"preset": "demo", **settings})
    specs = tuple(STRATEGIES.get(name) for name in ("A1_mean", "L5_keyword", "S2_gradient", "S4_sif"))
    plan = make_plan(Scope(config, DEMO, specs))
    local = {key: replace(step, build=partial(numbered, step)) for key, step in plan.local.items()}
    return replace(plan, work=PlannedWork(plan.tasks, local))


class SmallCluster:
    """A store and a queue in a folder, and one worker for each service."""

    def __init__(self, root: Path) -> None:
        self.artifacts = Artifacts(FolderStore(root / "store"))
        self.queue = TaskQueue(Broker(f"filesystem://{root}/queue"))
        self.leases = FolderLeases(root / "leases")

    def execute(self, plan: Plan) -> None:
        amounts = amounts_of(plan)
        seconds = {name: SECONDS[own.work.unit] * own.work.amount for name, own in amounts.items() if own.work}
        shapes = {
            key: own.sized.inputs[role]
            for own in amounts.values()
            for role, key in own.task.inputs.items()
            if role in own.sized.inputs
        }
        with self._workers(shapes, seconds):
            failures = RunLoop(plan, self.artifacts, self.queue, self.leases, Notes(), pace=FAST).run()
        assert not failures

    @contextmanager
    def _workers(self, shapes: dict[str, Shape], seconds: dict[str, float]) -> Iterator[None]:
        made = [Worker(Sized(name, shapes, seconds), self.artifacts, self.leases) for name in SERVICES]
        consumers = [Consumer(self.queue, worker) for worker in made]
        with consuming(consumers):
            yield

    def recorded_s(self, plan: Plan) -> dict[str, float]:
        """Return the time of a plan's tasks by kind, as their manifests have it."""
        found: dict[str, float] = defaultdict(float)
        for task in plan.tasks.values():
            found[task.kind] += sum(self.artifacts.manifest(key).producer["wall_s"] for key in task.outputs.values())
        return found


def test_a_repeated_run_takes_what_its_estimate_says(tmp_path: Path) -> None:
    """Compare sums of recorded times: the estimate is made before the second run, from the first one alone."""
    cluster, first, second = SmallCluster(tmp_path), small_plan(0), small_plan(1)
    cluster.execute(first)
    for name, own in amounts_of(first).items():
        assert own.work is not None, own.task.kind
        for key in own.task.outputs.values():
            written = cluster.artifacts.manifest(key).producer["work"]
            assert written == own.work._asdict() | {"amount": own.work.amount}, (own.task.kind, name)

    todo = [task for task in second.tasks.values() if not all(map(cluster.artifacts.exists, task.outputs.values()))]
    committed = [key for task in first.tasks.values() for key in task.outputs.values()]
    rates = read_rates(cluster.artifacts, committed, {task.kind for task in todo})
    estimated = estimate_tasks(second, todo, rates, Cluster())
    cluster.execute(second)
    recorded = cluster.recorded_s(second)
    expected: dict[str, float] = defaultdict(float)
    for each in estimated.values():
        assert each.seconds is not None
        expected[each.kind] += each.seconds.expected
    shared = {task.kind for task in second.tasks.values()} - set(expected)
    assert shared <= {"steerer.generate", "extractor.calibrate"}
    total_expected, total_recorded = sum(expected.values()), sum(recorded[kind] for kind in expected)
    assert total_recorded / 3 < total_expected < 3 * total_recorded, (expected, recorded)
