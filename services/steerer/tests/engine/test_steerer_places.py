"""Places in the engine: texts of tasks leave some to texts that clients wait for."""

from __future__ import annotations

import asyncio

import pytest

from poolbench_steerer.engine.rows import TaskPlaces, num_task_places


@pytest.mark.parametrize(
    ("num_rows", "num_seqs", "expected"), [(1024, 256, 240), (64, 256, 56), (1024, 8, 7), (1024, 1, 1), (2, 256, 2)]
)
def test_places_of_tasks(num_rows: int, num_seqs: int, expected: int) -> None:
    assert num_task_places(num_rows, num_seqs) == expected


class Texts:
    """Texts of a task that wait for a place, and then until they are let go."""

    def __init__(self, held: TaskPlaces, num: int) -> None:
        self.inside = 0
        self.go = asyncio.Event()
        self.tasks = [asyncio.create_task(self._text(held)) for _ in range(num)]

    async def _text(self, held: TaskPlaces) -> None:
        async with held.place(of_task=True):
            self.inside += 1
            await self.go.wait()
        self.inside -= 1


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_tasks_have_fewer_places_while_clients_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        held = TaskPlaces(4, 2)
        async with held.place(of_task=False):
            texts = Texts(held, 6)
            await _settle()
            assert (texts.inside, held.num) == (2, 2)
        assert held.num == 2  # a client that asked just now may ask again
        monkeypatch.setattr("poolbench_steerer.engine.rows._SOON_S", 0.0)
        assert held.num == 4
        texts.go.set()
        await asyncio.gather(*texts.tasks)
        texts = Texts(held, 6)
        await _settle()
        assert texts.inside == 4
        async with held.place(of_task=False):  # needs no place
            pass
        texts.go.set()
        await asyncio.gather(*texts.tasks)

    asyncio.run(scenario())


def test_a_text_that_is_cancelled_leaves_its_place() -> None:
    async def scenario() -> None:
        held = TaskPlaces(1, 1)
        first, second = Texts(held, 1), Texts(held, 2)
        await _settle()
        second.tasks[0].cancel()
        first.tasks[0].cancel()
        await asyncio.gather(first.tasks[0], second.tasks[0], return_exceptions=True)
        await _settle()
        assert second.inside == 1
        second.go.set()
        await second.tasks[1]

    asyncio.run(scenario())
