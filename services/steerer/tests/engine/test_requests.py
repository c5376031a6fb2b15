"""Requests that are refused or given up, and sampled texts with a seed."""

import asyncio
import dataclasses
from typing import Any

import numpy as np
import pytest
from services.steerer.tests.conftest import standing_still
from services.steerer.tests.engine.conftest import generate
from tests.waiting import until

from poolbench.errors import InputError, LayerError
from poolbench.telemetry.ids import identified
from poolbench_steerer.engine import Generation, GenerationRequest
from poolbench_steerer.errors import PromptTooLongError, UnknownVectorError
from poolbench_steerer.plugin.runner import keep_generators
from poolbench_steerer.plugin.spec import Edit, Steering

pytestmark = pytest.mark.lane(name="engines")


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (UnknownVectorError, "not registered", {"steering": Steering((Edit("nope", 2, 1.0),))}),
        (LayerError, r"blocks 0\.\.5; nearest 5", {"layer": 6}),
        (PromptTooLongError, "exceed the window", {"prompt_ids": (5,) * 253}),
        (PromptTooLongError, "exceed the window", {"max_tokens": 250}),
        (InputError, "no tokens", {"prompt_ids": ()}),
        (InputError, "at least 1", {"max_tokens": 0}),
    ],
)
def test_bad_requests_are_named_and_nothing_is_generated(host, model_ref, prompts, vector_ids, error, message, change):
    layer = change.pop("layer", 2)
    good = GenerationRequest(prompts[1], 4, Steering((Edit(vector_ids[0], layer, 1.0),)))
    requests = [GenerationRequest(prompts[0], 4), dataclasses.replace(good, **change)]
    with pytest.raises(error, match=message):
        generate(host, model_ref, requests)


def test_what_cannot_be_steered_is_refused(host, model_ref, prompts, vector_ids):
    five = Steering(tuple(Edit(key, 2, 1.0) for key in vector_ids[:5]))
    late = Steering((Edit(vector_ids[0], 2, 1.0),), 500)
    for steering, message in ((five, "at most 4"), (late, "would steer nothing")):
        with pytest.raises(InputError, match=message):
            generate(host, model_ref, [GenerationRequest(prompts[0], 4, steering)])


def test_cancelled_requests_leave_no_row_and_no_slot_in_use(host, model_ref, prompts, vector_ids, requests):
    steering = Steering((Edit(vector_ids[0], 1, 60.0),))
    # More than fit into the engine at once: some are cancelled while they still wait for a row.
    many = [GenerationRequest(prompts[4], 100, steering, ignore_eos=True)] * 80

    async def job(engine: Any) -> None:
        with standing_still(host):
            running = asyncio.create_task(engine.generate(many))
            await until(lambda: engine.rows_in_use == host.config.max_steered_requests)
            running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    host.run(model_ref, job)
    health = host.health()
    assert (health["steered_requests"], health["vectors_in_use"], health["jobs"]) == (0, 0, 0)
    made = generate(host, model_ref, requests[:16])
    assert len(made) == 16


def test_the_engine_sees_the_id_of_the_request(host, model_ref, prompts, monkeypatch):
    seen: list[str] = []

    async def job(engine: Any) -> list[Generation]:
        original = engine.vllm_generate

        def spy(prompt: Any, params: Any, request_id: str) -> Any:
            seen.append(request_id)
            return original(prompt, params, request_id)

        with monkeypatch.context() as patched:
            patched.setattr(engine, "vllm_generate", spy)
            return await engine.generate([GenerationRequest(prompts[0], 2)] * 2)

    with identified(request_id="mine-42"):
        assert len(host.run(model_ref, job)) == 2
    assert len(set(seen)) == 2 and all(each.startswith("mine-42-") for each in seen)


class Runner:
    """What `keep_generators` touches of vLLM's model runner; sampling draws from every generator."""

    def __init__(self) -> None:
        self.input_batch = self
        self.discard_request_mask = self
        self.np = np.array([False, True, False, True])
        self.num_reqs = 3
        self.generators = {index: [f"draws of {index}"] for index in (0, 1, 3)}

    def _sample(self) -> str:
        for draws in self.generators.values():
            draws.append("one")
        return "sampled"

    def _bookkeeping_sync(self) -> str:
        assert 1 not in self.generators  # its rewinding is what fails on CPUs
        return "kept"


def test_generators_of_discarded_tokens_are_left_alone():
    runner = Runner()
    keep_generators(runner)
    assert (runner._sample(), runner._bookkeeping_sync()) == ("sampled", "kept")
    assert {index: len(draws) for index, draws in runner.generators.items()} == {0: 2, 1: 1, 3: 2}


def test_seeded_texts_do_not_depend_on_chunks_and_neighbours(
    host: Any, model_ref: Any, prompts: Any, unit_vectors: Any
):
    """Prompts are computed in chunks of 96 tokens here, cut where the others in the batch leave room."""

    async def job(engine: Any) -> tuple[list[Any], list[Any]]:
        (key,) = await engine.register([unit_vectors[3]])
        steering = Steering((Edit(key, 2, 60.0),))
        requests = [
            GenerationRequest(prompt, 8, steering if index % 2 else None, temperature=1.0, seed=index, ignore_eos=True)
            for index, prompt in enumerate([*prompts, sum(prompts, ())[:200]])
        ]
        together = await engine.generate(requests)
        return together, [(await engine.generate([request]))[0] for request in requests]

    restarts = host.keeper.num_restarts
    together, alone = host.run(model_ref, job)
    assert together == alone
    assert len({made.token_ids for made in together}) == len(together)
    assert host.keeper.num_restarts == restarts
