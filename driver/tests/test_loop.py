"""The loop over a real folder store, a real folder queue and a real worker, and what a round of it costs."""

import threading
from collections import Counter
from dataclasses import replace
from itertools import count

import pyarrow as pa
import pytest
from driver.tests.loop_bench import FAST, A, B, Bench, C, Consumer, Notes, add, consuming, plan_of
from tests.servers import redis as redis_server
from tests.servers.counted import Counted
from tests.waiting import PATIENCE_S, wait_until

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import cancel_path, failure_path
from poolbench.errors import CellError, StoreError
from poolbench.queue import Broker, TaskQueue, open_leases
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker.worker import Worker
from poolbench_driver.corpora.sources import LocalStep
from poolbench_driver.loop import Pace, TooManyFailuresError
from poolbench_driver.loop.repairs import Recovery
from poolbench_driver.stages.failure import Failure
from poolbench_driver.stages.stage import PlannedWork


def test_tasks_run_in_the_order_of_their_inputs(bench: Bench) -> None:
    bench.consume()
    assert bench.loop(A, B, C).run() == {}
    assert [bench.value(key) for key in ("sum.a", "sum.b", "sum.c")] == [2, 3, 6]
    assert bench.notes.finished == [A.task_id, B.task_id, C.task_id]
    assert bench.artifacts.manifest("seed.one").producer["step"] == "seed"


def test_a_second_run_does_no_work(bench: Bench) -> None:
    bench.consume()
    bench.loop(A, B, C).run()
    handled = list(bench.service.handled)
    bench.notes = Notes()
    assert bench.loop(A, B, C).run() == {}
    assert bench.service.handled == handled
    assert bench.notes.finished == [] and len(bench.notes.reused) == 3


def test_a_lost_message_is_sent_again(bench: Bench) -> None:
    consumer = bench.consume(lose=1)
    loop = bench.loop(A, B, pace=replace(FAST, vanished_s=2.0, max_vanished_s=2.0))
    assert loop.run() == {}
    assert loop.resent == 1
    assert consumer.taken == [A.task_id, A.task_id, B.task_id]
    assert any("sent again" in line for line in bench.notes.lines)


def test_a_task_that_kills_its_workers_is_given_up(bench: Bench) -> None:
    bench.consume(lose=10**6)
    pace = Pace(vanished_s=0.1, max_vanished_s=0.1, tick_s=0.02, max_sends=3)
    failures = bench.loop(A, B, pace=pace).run()
    assert "sent 3 times" in failures[A.task_id].reason
    assert failures[B.task_id].blocked


def test_a_failure_blocks_what_depends_on_it_and_says_why(bench: Bench) -> None:
    bench.consume()
    broken = add("sum.a", "seed.one", fail="too_few")
    free = add("sum.free", "seed.one")
    failures = bench.loop(broken, B, C, free).run()
    assert set(failures) == {broken.task_id, B.task_id, C.task_id}
    assert {failure.status for failure in failures.values()} == {"too_few"}
    assert failures[broken.task_id].reason == "only 3 passages; 20 are needed"
    root = "needs prober.add, which failed: only 3 passages; 20 are needed"
    assert failures[B.task_id].reason == failures[C.task_id].reason == root
    assert bench.value("sum.free") == 2


def test_a_failed_task_is_tried_again_by_the_next_run(bench: Bench) -> None:
    bench.consume()
    bench.loop(add("sum.a", "seed.one", fail="too_few")).run()
    assert bench.artifacts.store.exists(failure_path(A.task_id))
    assert bench.loop(A).run() == {}
    assert not bench.artifacts.store.exists(failure_path(A.task_id))


def test_max_failures_counts_causes_and_stops(bench: Bench) -> None:
    bench.consume()
    broken = [add(f"sum.{n}", "seed.one", fail="too_few") for n in range(3)]
    blocked = [add(f"next.{n}", "sum.0") for n in range(5)]
    assert len(bench.loop(*broken, *blocked, max_failures=3).run()) == 8
    with pytest.raises(TooManyFailuresError, match=r"--max-failures 1.*only 3 passages"):
        bench.loop(*broken, *blocked, max_failures=1).run()


def test_a_leased_task_is_not_sent_again(bench: Bench) -> None:
    """Another driver's worker is at it: the loop waits for the outcome, however often it looks."""
    lease = bench.leases.acquire(A.task_id)
    assert lease is not None

    def finish() -> None:
        wait_until(lambda: bench.notes.num_ticks >= 50)
        bench.artifacts.write_table("sum.a", pa.table({"x": [40]}))

    other = threading.Thread(target=finish, daemon=True)
    other.start()
    loop = bench.loop(A, pace=replace(FAST, vanished_s=0.0))
    assert loop.run() == {}
    other.join()
    lease.release()
    assert loop.resent == 0 and bench.queue.depth("prober") == 0
    assert bench.value("sum.a") == 40


def test_what_already_waits_is_not_sent_twice(bench: Bench) -> None:
    bench.artifacts.write_table("seed.one", pa.table({"x": [1]}))
    bench.queue.send(A)
    loop = bench.loop(A, cancelled=lambda: bench.queue.depth("prober") != 1)

    def purge() -> None:
        wait_until(lambda: bench.notes.num_ticks >= 10)
        bench.queue.purge("prober")

    threading.Thread(target=purge, daemon=True).start()
    loop.run()
    assert list(loop.in_flight) == [A.task_id]
    loop._send(A)
    consumers, num_ticks = [], bench.notes.num_ticks

    def consume() -> None:
        wait_until(lambda: bench.notes.num_ticks > num_ticks)  # the next loop has seen what waits
        consumers.append(bench.consume())

    consuming = threading.Thread(target=consume, daemon=True)
    consuming.start()
    bench.loop(A).run()
    consuming.join()
    assert consumers[0].taken.count(A.task_id) == 1


def test_only_a_few_tasks_wait_at_a_time(bench: Bench) -> None:
    tasks = [add(f"sum.{n}", "seed.one") for n in range(9)]
    loop = bench.loop(*tasks, cancelled=lambda: bench.queue.depth("prober") > 0)
    loop.run()
    assert bench.queue.depth("prober") == FAST.queued_ahead
    assert len(loop.pending) == 7 and len(loop.in_flight) == 2


def test_what_a_cancelled_run_has_sent_is_dropped_and_sent_again_by_the_next(bench: Bench) -> None:
    bench.loop(A, cancelled=lambda: bench.queue.depth("prober") > 0).run()
    bench.queue.purge("prober")
    assert bench.artifacts.store.exists(cancel_path(A.task_id))
    bench.consume()
    bench.queue.send(A)  # a message that is still delivered
    wait_until(lambda: not bench.queue.depth("prober"))
    assert bench.loop(A).run() == {}
    assert not bench.artifacts.store.exists(cancel_path(A.task_id))
    assert bench.service.handled.count(A.task_id) == 1


def test_cancel_stops_and_the_next_run_continues(bench: Bench) -> None:
    bench.consume()
    loop = bench.loop(A, B, C, cancelled=lambda: bench.artifacts.exists("sum.a"))
    loop.run()
    assert loop.pending and not bench.artifacts.exists("sum.c")
    assert bench.loop(A, B, C).run() == {}
    assert bench.value("sum.c") == 6
    assert bench.service.handled.count(A.task_id) == 1


def test_a_short_outage_is_waited_out_and_a_long_one_is_said(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.artifacts.write_table("seed.one", pa.table({"x": [1]}))
    exists, looks, num_away = bench.artifacts.exists, count(), 20

    def flaky(key: str) -> bool:
        if next(looks) < num_away:
            raise StoreError("the store does not answer")
        return exists(key)

    loop = bench.loop(A, B)
    monkeypatch.setattr(loop.artifacts, "exists", flaky)
    # The worker must not see the outage, so it has artifacts of its own.
    worker = Worker(bench.service, Artifacts(FolderStore(bench.root / "store")), bench.leases)
    bench.consumer = Consumer(bench.queue, worker)
    bench.consumer.start()
    assert loop.run() == {}
    assert bench.notes.lines.count("waiting: the store does not answer") == 1
    num_away = 10**9
    with pytest.raises(StoreError):
        bench.loop(add("sum.never", "seed.one"), pace=replace(FAST, outage_s=0.2)).run()


def test_a_local_step_that_cannot_be_built_stops_the_run_before_any_task(bench: Bench) -> None:
    def broken() -> pa.Table:
        raise CellError("too_few", "corpus.jsonl, line 3: not JSON")

    loop = bench.loop(A)
    loop.plan.local["seed.one"] = LocalStep("seed.one", "seed", broken)
    with pytest.raises(CellError, match="line 3"):
        loop.run()
    assert bench.queue.depth("prober") == 0


def test_garbage_among_the_messages_and_dead_letters_stops_no_run(bench: Bench) -> None:
    for number, raw in enumerate([b"garbage", b"", b"\xff", b"[1,2]", b"null", b"{}", b"[" * 100_000]):
        for folder in ("messages", "dead"):
            (bench.root / "queue" / folder / f"00{number}.poolbench-prober.msg").write_bytes(raw)
    assert (bench.queue.depth("prober"), len(bench.queue.misunderstood("prober"))) == (7, 7)
    loop = bench.loop(A, cancelled=lambda: len(bench.queue.waiting("prober")) > 0)
    assert loop.run() == {}  # it looks at the garbage while nobody takes it
    bench.consume()
    assert bench.loop(A, B, C).run() == {}
    assert bench.value("sum.c") == 6
    assert bench.queue.num_dead_letters("prober") == len(bench.queue.dead_letters("prober")) == 14


NUM_TASKS = 8


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

    other = threading.Thread(target=finish, daemon=True)
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

    other = threading.Thread(target=finish, daemon=True)
    other.start()
    assert loop.run() == {}
    other.join()
    assert bench.value("sum.next") == 7 and loop.resent == 0


def test_steps_of_the_driver_with_one_label_are_noted_once(bench: Bench) -> None:
    keys = ("a.rows.1", "a.rows.2", "a.rows.3")
    steps = {key: LocalStep(key, "openings in other forms", lambda: pa.table({"x": [1]})) for key in keys}
    recovery = Recovery(
        replace(plan_of(), work=PlannedWork({}, steps)), bench.artifacts, bench.leases, bench.notes.note
    )
    recovery.begin(set())
    assert bench.notes.lines == ["building openings in other forms (3)"]
    assert recovery.committed == set(keys) == {key for key in keys if bench.artifacts.exists(key)}


@pytest.mark.parametrize("kind", redis_server.BROKERS)
def test_two_drivers_of_overlapping_plans_do_each_task_once(kind: str, bench: Bench) -> None:
    """Work is counted in executions of tasks, because time says little on a machine that is shared."""
    both = [add(f"sum.{number}", "seed.one") for number in range(6)]
    plans = [[*both, *(add(f"{name}.{number}", f"sum.{number}") for number in range(6))] for name in ("one", "two")]
    results: list[dict[str, Failure]] = []
    with redis_server.broker(kind, bench.root) as url:
        bench.queue, bench.leases = TaskQueue(Broker(url)), open_leases(Broker(url))
        workers = [Worker(bench.service, bench.artifacts, open_leases(Broker(url))) for _ in range(2)]
        loops = [bench.loop(*tasks) for tasks in plans]
        drivers = [threading.Thread(target=lambda loop=loop: results.append(loop.run())) for loop in loops]
        with consuming([Consumer(TaskQueue(Broker(url)), worker) for worker in workers]):
            for driver in drivers:
                driver.start()
            for driver in drivers:
                driver.join(PATIENCE_S)
            wait_until(lambda: bench.queue.depth("prober") == 0)
        assert bench.queue.num_dead_letters("prober") == 0
    assert results == [{}, {}]
    assert Counter(bench.service.handled) == Counter({task.task_id for tasks in plans for task in tasks})
