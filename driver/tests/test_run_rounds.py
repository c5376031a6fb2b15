"""What one round of the loop costs: requests to the store follow what ends, not what is in work."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from driver.tests.loop_bench import FAST, Bench, add
from tests.waiting import wait_until

from poolbench.contracts.tasks import Task

NUM_TASKS = 8


class Counted:
    """A store that counts requests by method."""

    def __init__(self, store: Any) -> None:
        self._store, self.requests = store, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def counted(*args: Any, **options: Any) -> Any:
            self.requests[name] += 1
            return found(*args, **options)

        return counted


def test_tasks_in_work_cost_no_requests(bench: Bench) -> None:
    tasks = [add(f"sum.{number}", "seed.one") for number in range(NUM_TASKS)]
    leases = [bench.leases.acquire(task.task_id) for task in tasks]
    loop = bench.loop(*tasks, pace=replace(FAST, look_s=3600.0, rare_look_s=3600.0, queued_ahead=NUM_TASKS))
    counted = Counted(bench.artifacts.store)
    loop.artifacts.store = counted  # type: ignore[assignment]
    during = Counter[str]()

    def finish() -> None:
        wait_until(lambda: len(loop.in_flight) == NUM_TASKS and bench.notes.num_ticks >= 5)
        before, ticks = counted.requests.copy(), bench.notes.num_ticks
        wait_until(lambda: bench.notes.num_ticks >= ticks + 30)
        during.update(counted.requests - before)
        for number, lease in enumerate(leases):
            bench.artifacts.write_table(f"sum.{number}", pa.table({"x": [number]}))
            assert lease is not None
            lease.release()

    other = threading.Thread(target=finish)
    other.start()
    assert loop.run() == {}
    other.join()
    assert during.total() == 0
    assert loop.resent == 0 and len(bench.notes.finished) == NUM_TASKS


@pytest.mark.parametrize("looks", [True, False])
def test_first_outputs_are_used_before_their_task_ends(bench: Bench, *, looks: bool) -> None:
    long = Task(kind="prober.add", inputs={"x0": "seed.one"}, outputs={"a": "sum.first", "b": "sum.second"})
    lease = bench.leases.acquire(long.task_id)
    assert lease is not None
    bench.consume()
    pace = replace(FAST, look_s=0.02 if looks else 3600.0, rare_look_s=3600.0)
    loop = bench.loop(long, add("sum.next", "sum.first"), pace=pace)

    def finish() -> None:
        wait_until(lambda: bench.notes.num_ticks >= 5)
        bench.artifacts.write_table("sum.first", pa.table({"x": [6]}))
        if looks:
            wait_until(lambda: bench.artifacts.exists("sum.next"))
        bench.artifacts.write_table("sum.second", pa.table({"x": [7]}))
        lease.release()

    other = threading.Thread(target=finish)
    other.start()
    assert loop.run() == {}
    other.join()
    assert bench.value("sum.next") == 7 and loop.resent == 0
