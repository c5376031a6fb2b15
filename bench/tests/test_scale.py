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


def test_runs_with_two_models_load_each_engine_once(tmp_path: Path) -> None:
    from scaling.layouts import shared_layout
    from scaling.measure import Place, simulate
    from scaling.plans import card_plan, times_of

    from poolbench.storage.folder import FolderStore

    small = {"concepts": ["contrast", "causation"], "strategies": ["A1_mean", "L5_keyword"], "layers": [0.5]}
    plans = [card_plan(model, **small) for model in ("llama-3.1-8b", "gemma-2-9b")]
    place = Place(f"filesystem://{tmp_path}/queue", FolderStore(tmp_path / "store"))
    times = times_of(plans)
    # On a busy machine the drivers compute for so long that a steerer takes a task of the other model meanwhile.
    made = simulate(plans, times, shared_layout(2, {}), 2, place, at_once=True, warm=True, count_computing=False)
    assert made["loads"].get("steerer", 0) == 0 and not made["executed_twice"]


def test_an_error_in_a_simulated_thread_ends_the_simulation() -> None:
    from scaling.clock import SimulatedClock

    clock = SimulatedClock()

    def fail() -> None:
        clock.sleep(1.0)
        raise ValueError("no disk")

    with pytest.raises(ValueError, match="no disk"):
        clock.run([clock.start("a", fail), clock.start("b", lambda: clock.sleep(5.0))])


@pytest.mark.parametrize("kind", BROKERS)
def test_no_replica_polls_an_empty_queue(tmp_path: Path, kind: str) -> None:
    from scaling.layouts import shared_layout
    from scaling.measure import Place, simulate
    from scaling.plans import card_plan, times_of

    from poolbench.storage.folder import FolderStore

    plan = card_plan("gemma-2-9b", concepts=["contrast"], strategies=["A1_mean"], layers=[0.5])
    with broker(kind, tmp_path) as url:
        place = Place(url, FolderStore(tmp_path / "store"))
        made = simulate([plan], times_of([plan]), shared_layout(8, {}), 8, place, at_once=True, warm=True)
    assert made["tasks"] == len(plan.tasks) and not made["executed_twice"]
    assert (made["broker"] is None) == (kind == "folder")
    if made["broker"]:
        commands = made["broker"]["commands"]
        assert commands["lrem"] == commands["hdel"] == len(plan.tasks)  # taken and acknowledged
        assert made["broker"]["commands_per_s"] == pytest.approx(sum(commands.values()) / made["elapsed_s"])


@pytest.mark.parametrize("at_once", [False, True])
def test_every_task_is_executed_once_within_the_bounds_of_the_schedule(tmp_path: Path, *, at_once: bool) -> None:
    from scaling.cluster import GPU_SERVICES
    from scaling.layouts import shared_layout
    from scaling.measure import Place, simulate
    from scaling.plans import card_plan, times_of

    from poolbench.storage.folder import FolderStore

    small = {"concepts": ["contrast"], "strategies": ["A1_mean", "L5_keyword"], "layers": [0.5]}
    plans = [card_plan(model, **small) for model in (("llama-3.1-8b", "gemma-2-9b") if at_once else ("gemma-2-9b",))]
    tasks = {task.task_id: task for plan in plans for task in plan.tasks.values()}
    times = times_of(plans)
    place = Place(f"filesystem://{tmp_path}/queue", FolderStore(tmp_path / "store"), latency_s=0.002)
    made = simulate(plans, times, shared_layout(2, {}), 2, place, at_once=at_once)
    assert made["tasks"] == len(tasks) and not made["notes"] and not made["executed_twice"]
    assert made["elapsed_s"] >= made["gpu_busy_s"] / 2
    on_gpus = sum(seconds for name, seconds in times.tasks.items() if tasks[name].service in GPU_SERVICES)
    assert made["gpu_busy_s"] == pytest.approx(on_gpus)
    assert 0 < made["utilisation"] <= 1
    driver = made["driver"]
    assert driver["rounds"] > 10 and driver["store"]["requests"]["put"] > 0
    assert driver["round_max_s"] >= driver["round_p95_s"] > 0
