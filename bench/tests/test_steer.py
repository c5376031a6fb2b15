"""The steering benchmarks: pairs are pairs, and settings are distinct."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.mark.parametrize("num_settings", [1, 8, 64, 256])
def test_a_batch_holds_so_many_distinct_settings(num_settings: int) -> None:
    from steering.batches import Sizes, requests

    engine: Any = SimpleNamespace(num_layers=6)
    batch = requests(engine, Sizes(), [f"v{index}" for index in range(num_settings)])
    edits = {request.steering.edits[0] for request in batch if request.steering}
    assert len(batch) == 256 and len(edits) == num_settings
    assert len({(edit.layer, edit.alpha) for edit in edits}) == num_settings
    plain = requests(engine, Sizes(), None)
    assert [one.prompt_ids for one in plain] == [one.prompt_ids for one in batch]
    assert len({one.prompt_ids for one in plain}) == 256
    assert {one.steering for one in plain} == {None}
    assert {one.max_tokens for one in (*plain, *batch)} == {64} and all(one.ignore_eos for one in (*plain, *batch))


def test_settings_take_turns_and_pairs_alternate_their_order_and_give_the_median() -> None:
    from steering.rates import Rates, compared, interleaved

    order: list[str] = []

    def side(name: str, rates: list[float]) -> Any:
        async def run(index: int) -> Rates:
            order.append(name)
            return Rates(rates[index], 2 * rates[index])

        return run

    sides = {"one": side("one", [9, 19, 20]), "two": side("two", [1, 1, 1])}
    pairs = asyncio.run(interleaved(side("plain", [10, 20, 40]), sides, 3))
    first, second = ["plain", "one", "plain", "two"], ["one", "plain", "two", "plain"]
    assert order == [*first, *second, *first]
    found = compared(pairs["one"])
    assert found["ratio"] == found["cpu_ratio"] == 0.9
    assert found["wall_ratios"] == [0.5, 0.9, 0.95]
    assert (found["default_tokens_per_s"], found["tokens_per_s"]) == (20, 19)
