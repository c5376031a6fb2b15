"""Simulate runs on 64 GPUs: the real plan, driver loop, queue, leases, artifacts and manifests.

Replicas let the time of each task pass instead of computing. The time is simulated (`scaling/clock.py`), so no figure
depends on a compression of time; what driver and replicas compute counts as it was measured. `python bench/scale.py`
simulates the card's three models, `--full` also on 1, 4 and 16 GPUs.
"""

import argparse
import logging
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import Parser, write_report
from scaling.layouts import shared_layout, shipped_layout, split_layout
from scaling.measure import Place, simulate, stored_bytes
from scaling.plans import CARD_MODELS, card_plan, many_tasks, times_of

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import SERVICES
from poolbench.steps import SERVICE_STEPS
from poolbench.storage import Artifacts, open_store
from poolbench.storage.folder import FolderStore
from poolbench_driver.estimate import read_rates
from poolbench_driver.estimate.amounts import chains
from poolbench_driver.estimate.estimate import GPU_SERVICES
from poolbench_driver.estimate.rates import Rates
from poolbench_driver.stages.stage import committed_keys

LAYOUTS = {"shipped": shipped_layout, "shared": shared_layout, "split": split_layout}
#: The bar of memory for a driver with many tasks.
MEMORY_BYTES = 500e6
MEMORY = Path("/dev/shm")
#: With `--full`: numbers of GPUs, and rounds of the driver with many tasks.
FULL_GPUS, FULL_ROUNDS = [1, 4, 16, 64], 500


@contextmanager
def _place(args: argparse.Namespace) -> Iterator[Place]:
    """Yield an empty broker and store."""
    in_memory = MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 1e9 else None  # some 25,000 small files
    folder = Path(tempfile.mkdtemp(dir=args.scratch or in_memory))
    try:
        store = FolderStore(folder / "store")
        latency_s = args.store_latency_ms / 1000
        if args.broker == "folder":
            yield Place(f"filesystem://{folder}/queue", store, latency_s)
        else:
            from tests.servers.redis import serve

            with serve(folder) as url:
                yield Place(url, store, latency_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sizes(args: argparse.Namespace) -> dict[str, Any]:
    """Simulate the card's models on each number of GPUs."""
    plans = [card_plan(model, args.preset, **args.settings) for model in list(CARD_MODELS)[: args.models]]
    times = times_of(plans, recorded(args.times_from), pooler_processes=args.pooler_processes)
    tasks = {task.task_id: task for plan in plans for task in plan.tasks.values()}
    work_s = work_by_service(tasks.values(), times.tasks)
    by_gpus: dict[str, Any] = {}
    for gpus in args.gpus:
        with _place(args) as place:
            layout = LAYOUTS[args.layout](gpus, work_s)
            figures = simulate(plans, times, layout, gpus, place, at_once=not args.in_turn, warm=not args.cold)
            figures["stored_bytes"] = stored_bytes(Path(place.store.uri.removeprefix("file://")))
        figures["bound_s"] = schedule_bound(tasks.values(), times.tasks, gpus)
        figures["times_from"] = dict(times.sources)
        figures["longest_chain_s"] = max(chains(tasks.values(), times.tasks).values())
        by_gpus[str(gpus)] = figures
        _print(gpus, figures)
    return by_gpus


def schedule_bound(tasks: Iterable[Task], seconds: Mapping[str, float], gpus: int) -> float:
    """Return the seconds that no schedule can beat: the work of the GPUs on all of them, or the longest chain."""
    todo = list(tasks)
    work = sum(seconds[task.task_id] for task in todo if task.service in GPU_SERVICES)
    return max(work / max(gpus, 1), max(chains(todo, seconds).values(), default=0.0))


def loop(args: argparse.Namespace) -> dict[str, Any]:
    """Simulate one driver with very many tasks, for some rounds."""
    plan = many_tasks(args.loop_tasks)
    times = times_of([plan])
    with _place(args) as place:
        layout = split_layout(args.gpus[-1], work_by_service(plan.tasks.values(), times.tasks))
        gpus = args.gpus[-1]
        figures = simulate([plan], times, layout, gpus, place, at_once=False, max_rounds=args.loop_rounds)
    figures["planned_tasks"] = len(plan.tasks)
    _print(args.gpus[-1], figures)
    return figures


def recorded(uri: str | None) -> Rates | None:
    """Return the rates that the manifests of a store recorded."""
    if uri is None:
        return None
    artifacts = Artifacts(open_store(uri))
    return read_rates(artifacts, committed_keys(artifacts), SERVICE_STEPS)


def work_by_service(tasks: Iterable[Task], seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of work of each service."""
    work_s = dict.fromkeys(SERVICES, 0.0)
    for task in tasks:
        work_s[task.service] += seconds[task.task_id]
    return work_s


def _print(gpus: int, figures: Mapping[str, Any]) -> None:
    driver = figures["driver"]
    print(
        f"{gpus:3d} GPUs, {figures['tasks']} tasks: {figures['elapsed_s']:.0f} s simulated, GPUs busy "
        f"{figures['utilisation']:.2f}; driver {driver['cores']:.2f} cores, rounds p95 {driver['round_p95_s']:.3f} s, "
        f"{driver['store']['requests_per_s']:.0f} requests/s; took {figures['simulated_in_s']:.0f} s",
        flush=True,
    )


def ratios(by_size: Mapping[str, Any], many: Mapping[str, Any] | None) -> dict[str, float | None]:
    """Return the ratios of the report."""
    figures: dict[str, float | None] = {}
    if by_size:
        first, last = (pick(by_size, key=int) for pick in (min, max))
        one, most = by_size[first], by_size[last]
        figures = {
            f"scale.efficiency_{last}": most["utilisation"],
            f"scale.bound_{last}": most["bound_s"] / most["elapsed_s"],
            f"scale.driver_cores_{last}": most["driver"]["cores"],
        }
        if first != last:
            figures[f"scale.speedup_{last}"] = one["elapsed_s"] * int(first) / (int(last) * most["elapsed_s"])
    if many is not None:
        figures |= {
            "scale.loop_cores": many["driver"]["cores"],
            "scale.loop_memory_vs_bar": many["peak_resident_bytes"] / MEMORY_BYTES,
            "scale.loop_round_p95_s": many["driver"]["round_p95_s"],
        }
    return figures


def _arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("--gpus", type=int, nargs="+", default=[64])
    parser.add_argument(
        "--models", type=int, default=len(CARD_MODELS), help="how many of the card's models; 0 leaves the sizes out"
    )
    parser.add_argument("--preset", default="card", help="budget of the runs: card or full")
    parser.add_argument("--times-from", help="store whose manifests give the times of tasks, such as file:///data")
    parser.add_argument("--pooler-processes", type=int, default=4, help="processes of one pooler, with a core each")
    parser.add_argument("--layout", choices=LAYOUTS, default="shared")
    parser.add_argument("--in-turn", action="store_true", help="one run after the other, not all drivers at once")
    parser.add_argument("--cold", action="store_true", help="no model is loaded at the beginning")
    parser.add_argument("--broker", choices=("folder", "redis"), default="folder")
    parser.add_argument("--store-latency-ms", type=float, default=0.0, help="of each request of the driver")
    parser.add_argument(
        "--loop-tasks", type=int, default=20_000, help="tasks of the test of one driver; 0 leaves it out"
    )
    parser.add_argument("--loop-rounds", type=int, default=60, help="rounds of that test")
    parser.add_argument("--scratch", type=Path, help="folder for queue and store; by default in memory if 1 GB is free")
    parser.add_argument("--full", action="store_true", help="also 1, 4 and 16 GPUs, and a longer test of one driver")
    small = {"concepts": ["contrast"], "strategies": ["A1_mean"], "layers": [0.5]}
    parser.set_defaults(settings={})
    args = parser.options(models=1, loop_tasks=50, loop_rounds=10, settings=small)
    if args.full:
        args.gpus, args.loop_rounds = FULL_GPUS, FULL_ROUNDS
    return args


def main() -> None:
    """Simulate and write the report."""
    args = _arguments()
    logging.getLogger("poolbench.task").setLevel(logging.CRITICAL)  # tasks that the end of a simulation interrupts
    many = loop(args) if args.loop_tasks else None  # first, because the peak of memory is that of the process
    by_size = sizes(args) if args.models else {}
    write_report("scale", args, ratios(by_size, many), {"sizes": by_size, "loop": many})


if __name__ == "__main__":
    main()
