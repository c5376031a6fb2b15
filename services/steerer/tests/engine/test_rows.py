"""An engine that leaves its device to other services, and places for texts that clients wait for."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from poolbench.errors import ReceiptError
from poolbench_steerer.engine import GenerationRequest
from poolbench_steerer.engine.perplexity import score_continuations
from poolbench_steerer.engine.rows import Budget, TaskPlaces, agreed, num_task_places
from poolbench_steerer.plugin.spec import Edit, Steering


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


def test_the_first_to_wait_for_a_share_is_the_first_served() -> None:
    async def scenario() -> None:
        budget, order, go = Budget(10), list[int](), {size: asyncio.Event() for size in (8, 7, 2, 0)}

        async def use(size: int) -> None:
            async with budget.share(size):
                order.append(size)
                await go[size].wait()

        tasks = {size: asyncio.create_task(use(size)) for size in go}
        await _settle()
        assert (order, budget.left) == ([8, 0], 2)  # 2 would fit, but 7 came before; nothing waits for nothing
        tasks[7].cancel()
        await _settle()
        assert (order, budget.left) == ([8, 0, 2], 0)
        tasks[8].cancel()
        go[2].set(), go[0].set()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert budget.left == 10

    asyncio.run(scenario())


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


@pytest.mark.lane(name="engines")
def test_an_engine_that_left_starts_again_and_knows_its_vectors(host, model_ref, prompts, vector_ids):
    steered = GenerationRequest(prompts[3], 8, Steering((Edit(vector_ids[0], 2, 40.0),)), ignore_eos=True)

    def texts() -> Any:
        return host.run(model_ref, lambda engine: engine.generate([steered]))[0].token_ids

    before = texts()

    async def leave_beside_a_job(engine: Any) -> bool:
        await host.keeper.leave()
        return not engine.dead

    assert host.run(model_ref, leave_beside_a_job)
    assert host.health()["ready"]
    host.leave()
    assert host.health()["state"] == "idle"
    host.leave()  # there is nothing to end
    assert texts() == before


@pytest.mark.lane(name="engines")
def test_texts_of_tasks_are_those_of_clients(host, model_ref, prompts, vector_ids):
    """More than there are places for them."""
    steering = Steering((Edit(vector_ids[1], 3, 40.0),))
    asked = [GenerationRequest(prompt, 4, steering, ignore_eos=True) for prompt in prompts * 6]
    of_task = [replace(request, of_task=True) for request in asked]
    pairs = [(prompts[0], prompt) for prompt in prompts]

    async def both(engine: Any) -> Any:
        found = [[text.token_ids for text in await engine.generate(each)] for each in (of_task, asked)]
        return found, [await score_continuations(engine, pairs, of_task=of_task) for of_task in (True, False)]

    (texts, others), scores = host.run(model_ref, both)
    assert texts == others
    assert scores[0] == scores[1]


@pytest.mark.parametrize("second", [6, 14])
def test_tensor_parallel_workers_must_have_counted_the_same(second):
    """A worker that missed a position, or steered its share as if it were the whole, differs from the others."""

    def reply(changed: int) -> dict[str, object]:
        totals = {"repeated": 0, "skipped": 0, "stray": 0, "end": 0, "beyond": 0}
        return {"layers": [[2, [changed, 0, 0, 0]]], **totals, "broken": []}

    assert agreed([reply(7), reply(7)]).layers[2].changed == 7
    with pytest.raises(ReceiptError, match="workers disagree"):
        agreed([reply(7), reply(second)])
