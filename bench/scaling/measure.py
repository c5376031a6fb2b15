"""One simulated run: elapsed time, use of the GPUs, and the load of driver, broker and store."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from common import Clock, peak_bytes

from poolbench.contracts.tasks import Task
from poolbench.queue import Broker, open_leases
from poolbench.storage import Artifacts
from poolbench.storage.base import ObjectStore
from poolbench_driver.loop import RunLoop
from poolbench_driver.loop.progress import Display
from poolbench_driver.stages.plan import ConceptsPlan
from scaling.clock import SimulatedClock
from scaling.cluster import GPU_SERVICES, Device, NotifyingQueue, Replica, Switchboard, Times, Usage
from scaling.layouts import Layout
from scaling.load import CountingStore, SimulatedRequests, broker_figures, broker_load, parsed_once, store_figures


class TimedLoop(RunLoop):
    """The loop, with the time of each of its rounds."""

    rounds_s: list[float]

    def _step(self) -> None:
        began_s = self.clock.now_s()
        super()._step()
        self.rounds_s.append(self.clock.now_s() - began_s)


class Quiet(Display):
    """A display that shows nothing, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = 0
        self.notes: list[str] = []

    def done(self, task: Task, *, reused: bool = False) -> None:
        self.ended += 1

    def failed(self, task_id: str, kind: str, reason: str) -> None:
        raise AssertionError(f"{kind} {task_id}: {reason}")

    def note(self, message: str) -> None:
        if not message.startswith(("building", "deleted")):
            self.notes.append(message)

    def tick(self, in_flight: Mapping[str, Task]) -> None:
        """Nothing to show."""


@dataclass(frozen=True)
class Place:
    """Where a simulated run has its queue and its artifacts."""

    broker: str
    store: ObjectStore
    latency_s: float = 0.0  # of the driver's requests to the store, above what they take here


def simulate(
    plans: Sequence[ConceptsPlan],
    times: Times,
    layout: Layout,
    gpus: int,
    place: Place,
    *,
    at_once: bool,
    warm: bool = False,
    count_computing: bool = True,
    max_rounds: int | None = None,
) -> dict[str, Any]:
    """Run the plans, each by a driver of its own, and return the figures.

    Args:
        plans: The runs.
        times: Seconds of each task, and of loading a model.
        layout: The services of each replica.
        gpus: GPUs among the replicas.
        place: Queue and store.
        at_once: Whether all drivers start at once, or each after the one before.
        warm: Whether the models are loaded at the beginning, those of several plans in turns.
        count_computing: Whether time passes while drivers and replicas compute. Without it two simulations are equal.
        max_rounds: Rounds of a driver before its run is cancelled; by default it runs to the end.
    """
    clock, usage = SimulatedClock(count_computing=count_computing), Usage()
    switchboard, broker = Switchboard(clock), Broker(place.broker)
    store, at_replicas = CountingStore(place.store, clock, place.latency_s), CountingStore(place.store, clock, 0.0)
    machine, before = Clock(), broker_load(broker)
    queue = NotifyingQueue(broker, switchboard)
    loops = [_loop(plan, times, number, clock, queue, store, max_rounds) for number, plan in enumerate(plans)]
    orders = [[loop] for loop in loops] if at_once else [loops]
    drivers = [clock.start(f"driver-{number}", _runner(order)) for number, order in enumerate(orders)]
    servers = _replicas(layout, clock, switchboard, times, usage)
    if warm:
        _load(servers, [plan.scope.model.params["model"] for plan in plans])
    replicas = [
        clock.start(server.service, _server(server, broker, cast(ObjectStore, at_replicas))) for server in servers
    ]
    with parsed_once(clock):
        elapsed_s = clock.run(drivers)
    gpu_s = sum(usage.busy_s[name] for name in GPU_SERVICES)
    return {
        "elapsed_s": elapsed_s,
        **usage.figures(),
        "gpu_busy_s": gpu_s,
        "layout": Counter("+".join(services) for services in layout),
        "utilisation": gpu_s / (gpus * elapsed_s),
        "driver": _driver_figures(loops, sum(actor.cpu_s for actor in drivers), store, elapsed_s),
        "broker": broker_figures(before, broker_load(broker), elapsed_s),
        "store_of_replicas": store_figures(at_replicas, elapsed_s),
        "replicas_cpu_s": sum(actor.cpu_s for actor in replicas),
        "peak_resident_bytes": peak_bytes(),
        "simulated_in_s": machine.read().wall_s,
        "notes": [note for loop in loops for note in cast(Quiet, loop.display).notes],
    }


def _replicas(
    layout: Layout, clock: SimulatedClock, switchboard: Switchboard, times: Times, usage: Usage
) -> list[Replica]:
    """Return the replicas on each device."""
    devices = [(services, Device(clock)) for services in layout]
    return [
        Replica(service, device, clock, switchboard, times, usage)
        for services, device in devices
        for service in services
    ]


def _load(replicas: Iterable[Replica], models: Sequence[str]) -> None:
    """Load the models into the replicas of each service, in turns."""
    seen: Counter[str] = Counter()
    for replica in replicas:
        replica.loaded = models[seen[replica.service] % len(models)]
        seen[replica.service] += 1


def _driver_figures(loops: Sequence[TimedLoop], cpu_s: float, store: CountingStore, elapsed_s: float) -> dict[str, Any]:
    """Return the load of all drivers together: processor time, times of their rounds, requests to the store."""
    rounds_s = sorted(seconds for loop in loops for seconds in loop.rounds_s)
    return {
        "cpu_s": cpu_s,
        "cores": cpu_s / elapsed_s,
        "rounds": len(rounds_s),
        "round_p95_s": rounds_s[int(0.95 * (len(rounds_s) - 1))],
        "round_max_s": rounds_s[-1],
        "store": store_figures(store, elapsed_s),
    }


def _loop(
    plan: ConceptsPlan,
    times: Times,
    number: int,
    clock: SimulatedClock,
    queue: NotifyingQueue,
    store: CountingStore,
    max_rounds: int | None,
) -> TimedLoop:
    artifacts, rounds_s = Artifacts(cast(ObjectStore, store)), list[float]()
    loop = TimedLoop(
        plan,
        artifacts,
        queue,
        open_leases(queue.broker),
        Quiet(),
        run_id=f"run{number}",
        clock=clock,
        cancelled=lambda: max_rounds is not None and len(rounds_s) >= max_rounds,
    )
    loop.rounds_s = rounds_s
    loop.recovery.requests = SimulatedRequests(artifacts, store, clock)
    return loop


def _runner(loops: Sequence[RunLoop]) -> Any:
    def run() -> None:
        for loop in loops:
            loop.run()

    return run


def _server(replica: Replica, broker: Broker, store: ObjectStore) -> Any:
    from poolbench.queue import TaskQueue

    return lambda: replica.serve(TaskQueue(broker), Artifacts(store), open_leases(broker))


def stored_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
