"""The simulation behind `make bench-scale`: time passes in order, every task is executed, and figures add up."""

from pathlib import Path
from typing import Any

import pytest
from tests.servers.redis import BROKERS, broker


def test_simulated_time_passes_in_order_and_at_once() -> None:
    from scaling.clock import SimulatedClock

    clock, seen = SimulatedClock(count_computing=False), list[tuple[str, float]]()

    def act(name: str, *pauses: float) -> Any:
        def run() -> None:
            for pause in pauses:
                clock.sleep(pause)
                seen.append((name, clock.now_s()))

        return run

    first = clock.start("a", act("a", 3600.0, 10.0))
    second = clock.start("b", act("b", 3605.0))
    endless = clock.start("c", clock.wait)
    assert clock.run([first, second]) == 3610.0
    assert seen == [("a", 3600.0), ("b", 3605.0), ("a", 3610.0)]
    assert endless.done


def test_tasks_on_one_device_share_its_speed() -> None:
    from scaling.clock import SimulatedClock
    from scaling.cluster import Device

    clock, ended = SimulatedClock(count_computing=False), dict[str, float]()
    device = Device(clock)

    def act(name: str, begin_s: float, seconds: float) -> Any:
        def run() -> None:
            clock.sleep(begin_s)
            device.work(seconds)
            ended[name] = clock.now_s()

        return run

    clock.run([clock.start("a", act("a", 0.0, 10.0)), clock.start("b", act("b", 4.0, 3.0))])
    assert ended == {"b": pytest.approx(10.0), "a": pytest.approx(13.0)}


def test_an_error_in_a_simulated_thread_ends_the_simulation() -> None:
    from scaling.clock import SimulatedClock

    clock = SimulatedClock()

    def fail() -> None:
        clock.sleep(1.0)
        raise ValueError("no disk")

    with pytest.raises(ValueError, match="no disk"):
        clock.run([clock.start("a", fail), clock.start("b", lambda: clock.sleep(5.0))])


SMALL = {"concepts": ["contrast"], "strategies": ["A1_mean", "L5_keyword"], "layers": [0.5]}


def simulated(tmp_path: Path, url: str, num_gpus: int, *models: str, latency_s: float = 0.0, **options: Any) -> Any:
    """Simulate a small run of each model; return the plans, their times and what came out."""
    from scaling.layouts import shared_layout
    from scaling.measure import Place, simulate
    from scaling.plans import card_plan, times_of

    from poolbench.storage.folder import FolderStore

    plans = [card_plan(model, **SMALL) for model in models]
    times, place = times_of(plans), Place(url, FolderStore(tmp_path / "store"), latency_s=latency_s)
    return plans, times, simulate(plans, times, shared_layout(num_gpus, {}), num_gpus, place, **options)


@pytest.mark.parametrize("kind", BROKERS)
def test_no_replica_polls_an_empty_queue(tmp_path: Path, kind: str) -> None:
    with broker(kind, tmp_path) as url:
        (plan,), _, made = simulated(tmp_path, url, 8, "gemma-2-9b", at_once=True, warm=True)
    assert made["tasks"] == len(plan.tasks) and not made["executed_twice"]
    assert (made["broker"] is None) == (kind == "folder")
    if made["broker"]:
        commands = made["broker"]["commands"]
        assert commands["lrem"] == len(plan.tasks)  # each taken once
        assert made["broker"]["commands_per_s"] == pytest.approx(sum(commands.values()) / made["elapsed_s"])


@pytest.mark.parametrize("models", [["gemma-2-9b"], ["llama-3.1-8b", "gemma-2-9b"]], ids=["one", "two at once"])
def test_every_task_is_executed_once_within_the_bounds_of_the_schedule(tmp_path: Path, models: list[str]) -> None:
    """Of two models, each engine is loaded once.

    Computing does not count: on a busy machine the drivers would compute for so long that a steerer takes a task of the
    other model meanwhile.
    """
    from scaling.cluster import GPU_SERVICES

    two = len(models) == 2
    options = {"at_once": two, "warm": two, "count_computing": not two}
    plans, times, made = simulated(tmp_path, f"filesystem://{tmp_path}/queue", 2, *models, latency_s=0.002, **options)
    tasks = {task.task_id: task for plan in plans for task in plan.tasks.values()}
    assert made["tasks"] == len(tasks) and not made["notes"] and not made["executed_twice"]
    assert made["loads"].get("steerer", 0) == 0 or not two
    assert made["elapsed_s"] >= made["gpu_busy_s"] / 2
    on_gpus = sum(seconds for name, seconds in times.tasks.items() if tasks[name].service in GPU_SERVICES)
    assert made["gpu_busy_s"] == pytest.approx(on_gpus)
    assert 0 < made["utilisation"] <= 1
    driver = made["driver"]
    assert driver["rounds"] > 10 and driver["store"]["requests"]["put"] > 0
    assert driver["round_max_s"] >= driver["round_p95_s"] > 0
