"""What one broker costs: enqueueing, the way to the start of work, and the driver's rounds."""

import itertools
import random
import statistics
import time
from typing import Any

from common import Clock

from poolbench.config import ModelRef
from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import SERVICES
from poolbench_driver.config import RunConfig
from poolbench_driver.loop import Pace, RunLoop
from poolbench_driver.loop.progress import open_display
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.stage import Plan, PlanFacts, PlannedWork
from queueing.brokers import Place, new_task
from queueing.consumer import OUTPUT, SERVICE

_POLL_S = 0.01
_DEADLINE_S = 120.0


def starts(place: Place, number: int, seed: int) -> dict[str, float]:
    """Return milliseconds from the call that enqueues a task to the first line of its handler.

    Tasks are sent one at a time, after random pauses, to a consumer that waits for them.
    """
    _began(place, _send(place))  # the consumer has started
    rng, latencies_ms = random.Random(seed), []
    for _ in range(number):
        time.sleep(rng.uniform(0.0, 0.25))
        called_s = time.monotonic()
        latencies_ms.append(1000 * (_began(place, _send(place)) - called_s))
    return _summary(latencies_ms)


def backlog(place: Place, number: int) -> dict[str, float]:
    """Return tasks per second of one consumer with a backlog, and milliseconds between two starts."""
    tasks = [_send(place) for _ in range(number)]
    began_s = sorted(_began(place, task) for task in tasks)
    gaps_ms = [1000 * (later - earlier) for earlier, later in itertools.pairwise(began_s)]
    return {"tasks_per_s": (number - 1) / (began_s[-1] - began_s[0]), **_summary(gaps_ms)}


def enqueueing(place: Place, number: int) -> dict[str, float]:
    """Return tasks enqueued per second by one sender without a consumer, and its CPU time per task."""
    tasks = [new_task() for _ in range(number)]
    clock = Clock()
    for task in tasks:
        place.queue.send(task)
    spent = clock.read()
    place.queue.purge(SERVICE)
    return {"per_s": number / spent.wall_s, "cpu_ms_per_task": 1000 * spent.cpu_s / number}


def rounds(place: Place, num_tasks: int, num_rounds: int) -> dict[str, float]:
    """Return the driver's wall and CPU time per round, with two tasks of every service in flight that no worker takes.

    `num_tasks` is the number of tasks of each service in the plan; the others wait until these are done. The pause
    between two rounds is left out: it is `Pace.tick_s`, during which the driver sleeps.
    """
    tasks = [
        Task(kind=f"{name}.bench", outputs={"x": f"bench.{name}.{n}"}) for name in SERVICES for n in range(num_tasks)
    ]
    model = ModelInfo(ModelRef("demo", "somewhere", "local-0", "float32"), num_blocks=2, width=4)
    work = PlannedWork({task.task_id: task for task in tasks})
    plan = Plan(RunConfig(), work, PlanFacts(model, "none", "0", "none", 1.0))
    counted = itertools.count()
    loop = RunLoop(
        plan,
        place.artifacts,
        place.queue,
        place.leases,
        open_display("none"),
        pace=Pace(tick_s=0.0, vanished_s=_DEADLINE_S),
        cancelled=lambda: next(counted) >= num_rounds,
    )
    clock = Clock()
    loop.run()
    spent = clock.read()
    for name in SERVICES:
        place.queue.purge(name)
    tick_s = Pace().tick_s
    return {
        "round_ms": 1000 * spent.wall_s / num_rounds,
        "round_cpu_ms": 1000 * spent.cpu_s / num_rounds,
        "share_of_a_core": spent.cpu_s / num_rounds / (tick_s + spent.wall_s / num_rounds),
    }


def observing(place: Place, waiting: int, number: int) -> dict[str, float]:
    """Return milliseconds of one look at a queue in which tasks wait: their number, and their ids."""
    for _ in range(waiting):
        place.queue.send(new_task())
    looks = {"depth_ms": place.queue.depth, "ids_ms": place.queue.waiting}
    medians = {name: statistics.median(_timed(look) for _ in range(number)) for name, look in looks.items()}
    place.queue.purge(SERVICE)
    return medians


def _timed(look: Any) -> float:
    began_s = time.perf_counter()
    look(SERVICE)
    return 1000 * (time.perf_counter() - began_s)


def _send(place: Place) -> Task:
    task = new_task()
    place.queue.send(task)
    return task


def _began(place: Place, task: Task) -> float:
    """Wait for a task; return the monotonic time at which its handler was called."""
    ends_at, key = time.monotonic() + _DEADLINE_S, task.outputs[OUTPUT]
    while not place.artifacts.exists(key):
        if time.monotonic() > ends_at:
            raise TimeoutError(f"no start within {_DEADLINE_S:.0f} s; see {place.root / 'consumer.log'}")
        time.sleep(_POLL_S)
    return float(place.artifacts.read_table(key)["began_s"][0].as_py())


def _summary(values_ms: list[float]) -> dict[str, float]:
    p95 = statistics.quantiles(values_ms, n=20, method="inclusive")[-1]
    return {"p50_ms": statistics.median(values_ms), "p95_ms": p95, "max_ms": max(values_ms)}
