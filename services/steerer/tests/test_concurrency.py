"""Coroutines that run together, and work that outlives its caller."""

import asyncio

import pytest

from poolbench_steerer.concurrency import run_all, uncancelled


def test_the_first_error_ends_the_others_and_is_raised_as_it_is() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waits")

    async def fails() -> None:
        raise KeyError("mine") from ValueError("cause")

    with pytest.raises(KeyError, match="mine") as raised:
        asyncio.run(run_all([waits(), fails()]))
    assert ended == ["waits"] and isinstance(raised.value.__cause__, ValueError)


def test_results_come_in_order_and_ends_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poolbench_steerer.concurrency._REPORT_INTERVAL_S", 0.0)
    counts: list[int] = []
    assert asyncio.run(run_all([asyncio.sleep(0.01, "a"), asyncio.sleep(0, "b")], counts.append)) == ["a", "b"]
    assert sorted(counts) == [1, 2]


def test_work_is_finished_although_its_caller_is_cancelled() -> None:
    async def scenario() -> list[str]:
        done, go = list[str](), asyncio.Event()

        async def work() -> None:
            await go.wait()
            done.append("work")

        caller = asyncio.create_task(uncancelled(work()))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        return done

    assert asyncio.run(scenario()) == ["work"]
