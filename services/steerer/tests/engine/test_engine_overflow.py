"""Requests whose states overflow fail alone: nobody else's text or log-probabilities change by a bit.

Three barriers stand in line: bounds before the engine, a guard on the device, and cache blocks that are cleared before
they are used again. Each is tested with the ones before it taken away, and must be missed when it is taken away too.
The cache of these engines holds about 1,000 tokens, so that blocks change hands all the time.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from services.steerer.tests.conftest import pieces_of
from services.steerer.tests.engine.conftest import in_worker, many_settings

from poolbench.config import resolve_model
from poolbench.errors import PoolbenchError
from poolbench_steerer.engine import GenerationRequest, SteeringEngine
from poolbench_steerer.engine.perplexity import score_continuations
from poolbench_steerer.errors import StateOverflowError, StrengthError, VectorError
from poolbench_steerer.plugin import bank
from poolbench_steerer.plugin.spec import Edit, Steering

pytestmark = pytest.mark.lane(name="engines")
NUM_LAYERS = 6


@dataclass
class Served:
    """An engine, what runs beside hostile requests, and what came out of that on its own."""

    host: Any
    model: Any
    neighbours: list[GenerationRequest]
    quiet: list[Any]
    prompts: list[tuple[int, ...]]

    def run(self, job: Any) -> Any:
        return self.host.run(self.model, job)


async def observed(engine: Any, request: GenerationRequest) -> Any:
    """Tokens and log-probabilities of a text, or its error."""
    try:
        pieces = await pieces_of(engine, request, in_steps=False)
    except PoolbenchError as error:
        return error
    return pieces[-1].token_ids, pieces[-1].logprobs


async def alone(engine: Any, requests: list[GenerationRequest], prompts: list[tuple[int, ...]]) -> list[Any]:
    """Each request by itself, and the perplexities of the prompts: the same sums in the same order every time."""
    await engine.llm.reset_prefix_cache()
    texts = [await observed(engine, request) for request in requests]
    return [*texts, *[await score(engine, prompt) for prompt in prompts[4:8]]]


async def score(engine: Any, prompt: tuple[int, ...]) -> Any:
    """The perplexity of one text, or the error that it got."""
    try:
        return (await score_continuations(engine, [((), prompt)]))[0]
    except StateOverflowError as error:
        return error


@pytest.fixture(
    scope="module",
    params=["float32 with prefix cache", pytest.param("float16 without", marks=pytest.mark.lane(name="architectures"))],
)
def served(
    request: Any, host: Any, tiny_model: Any, steerer_config: Any, prompts: Any, unit_vectors: Any
) -> Iterator[Served]:
    from poolbench_steerer.host import EngineHost

    half = request.param.startswith("float16")
    serving = EngineHost(steerer_config.model_copy(update={"prefix_caching": False})) if half else host
    model = resolve_model(str(tiny_model), dtype="float16" if half else None)
    ids = serving.run(model, lambda engine: engine.register(list(unit_vectors)))
    long = sum(prompts, ())
    neighbours = [
        GenerationRequest(long[7 * index % 90 :][: 12 + 3 * index], 6, steering, ignore_eos=True, logprobs=2)
        for index, steering in enumerate(many_settings(ids, NUM_LAYERS, 60.0, 20))
    ]
    quiet = serving.run(model, lambda engine: alone(engine, neighbours, prompts))
    assert not any(isinstance(each, Exception) for each in quiet)
    yield Served(serving, model, neighbours, quiet, prompts)
    if half:
        serving.close()


@pytest.fixture
def no_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the first barrier away."""
    monkeypatch.setattr(SteeringEngine, "_check_change", lambda self, request: None)
    monkeypatch.setattr(bank, "MAX_LENGTH", float("inf"))


def unguarded(worker: Any) -> None:
    """Takes the second barrier away."""
    from poolbench_steerer.plugin import operators

    def write(
        hidden: Any, state: Any, layer: int, tokens_and_rows: Any, before: Any, after: Any, met: Any, spared: Any = None
    ) -> None:
        tokens, rows = tokens_and_rows
        hidden.index_copy_(0, tokens, after)
        operators._count(state.changed_LR[layer], rows, (after - before).abs().amax(dim=1) > 0)
        operators._count(state.applied_LR[layer], rows, met)

    operators.saved = (operators.guard, operators._write)
    operators.guard, operators._write = (lambda *arguments: None), write


def uncleared(worker: Any) -> None:
    """Takes the third barrier away."""
    # In place: vLLM hands over a wrapper, and attributes set on it are not the worker's.
    worker.saved_sizes = list(worker._block_sizes)
    worker._block_sizes[:] = [None] * len(worker._block_sizes)


def restore(worker: Any) -> None:
    from poolbench_steerer.plugin import operators

    if hasattr(operators, "saved"):
        operators.guard, operators._write = operators.saved
        del operators.saved
    worker._block_sizes[:] = getattr(worker, "saved_sizes", worker._block_sizes)
    for cache in worker.model_runner.kv_caches:
        cache.zero_()


def num_broken_in_cache(worker: Any) -> int:
    return sum(int((~cache.isfinite()).sum()) for cache in worker.model_runner.kv_caches)


async def hostile_requests(engine: Any, prompts: list[tuple[int, ...]]) -> list[GenerationRequest]:
    """Every operation with a change that overflows, at several positions, with and without sampling."""
    rng = np.random.default_rng(8)
    direction = rng.standard_normal(256).astype(np.float32)
    unit, huge = await engine.register([direction / np.linalg.norm(direction), np.full(256, 1e31)])
    ways = {
        "add": (Edit(huge, 2, 1e8),),
        "add_preserving_norm": (Edit(huge, 1, -1e8, "add_preserving_norm"),),
        "clamp": (Edit(huge, 3, 1e8, "clamp"),),
        "erase": tuple(Edit(unit, layer, 1e8, "erase") for layer in range(NUM_LAYERS)),
    }
    return [
        GenerationRequest(prompts[index][:20], 12, Steering(edits, positions), temperature, seed=3, ignore_eos=True)
        for index, edits in enumerate(ways.values())
        for positions, temperature in (("generated", 0.0), ("all", 0.0), (2, 1.0))
    ]


async def together(engine: Any, served: Served) -> tuple[list[Any], list[Any]]:
    """What hostile requests and their neighbours got, all at once and in turn."""
    hostile = await hostile_requests(engine, served.prompts)
    mixed = [each for pair in zip(served.neighbours, hostile * 2, strict=False) for each in pair]
    found = await asyncio.gather(*(observed(engine, request) for request in mixed))
    return found[1::2], found[::2]


def tokens(found: list[Any]) -> list[Any]:
    return [each[0] if isinstance(each, tuple) else each for each in found]


def test_a_change_that_could_overflow_never_reaches_the_engine(served, monkeypatch):
    async def job(engine: Any) -> list[Any]:
        with pytest.raises(VectorError, match=r"length 1\.6e\+32, at most 1e\+15"):
            await engine.register([np.full(256, 1e31)])
        monkeypatch.setattr(bank, "MAX_LENGTH", float("inf"))
        hostile = await hostile_requests(engine, served.prompts)
        if engine.dtype == "float32":  # there a clamp is only dangerous with a vector that was refused above
            hostile = [each for each in hostile if each.steering.edits[0].operation != "clamp"]
        monkeypatch.setattr(engine, "_rows", None)  # nothing may be run
        return [type(await observed(engine, request)) for request in hostile]

    found = served.run(job)
    assert found == [StrengthError] * len(found)


@pytest.mark.usefixtures("no_bounds")
@pytest.mark.parametrize("guarded", [True, False])
def test_a_state_that_overflows_fails_its_own_request_and_stays_out_of_the_cache(served, guarded):
    async def job(engine: Any) -> Any:
        try:
            if not guarded:
                await in_worker(engine, unguarded)
            return *await together(engine, served), await in_worker(engine, num_broken_in_cache)
        finally:
            await in_worker(engine, restore)

    hostile, beside, num_broken = served.run(job)
    failed = [isinstance(each, StateOverflowError) for each in hostile]
    assert all(failed) and num_broken == 0 if guarded else num_broken > 0 and not any(failed)
    assert tokens(beside) == tokens(served.quiet)[: len(beside)]  # the third barrier holds either way
    assert served.run(lambda engine: alone(engine, served.neighbours, served.prompts)) == served.quiet


@pytest.mark.usefixtures("no_bounds")
@pytest.mark.parametrize("cleared", [True, False])
def test_cache_blocks_are_cleared_before_they_change_hands(served, cleared):
    async def job(engine: Any) -> Any:
        try:
            await in_worker(engine, unguarded)
            if not cleared:
                await in_worker(engine, uncleared)
            _, beside = await together(engine, served)
            return beside, await alone(engine, served.neighbours, served.prompts)
        finally:
            await in_worker(engine, restore)

    beside, after = served.run(job)
    assert (tokens(beside) == tokens(served.quiet)[: len(beside)] and after == served.quiet) is cleared
    broken = [each for each in after if isinstance(each, StateOverflowError)]
    assert cleared or broken  # log-probabilities that are not finite are errors
