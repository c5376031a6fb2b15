"""An engine that leaves its device to other services, and texts of tasks beside texts of clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from poolbench_steerer.engine import GenerationRequest
from poolbench_steerer.engine.perplexity import score_continuations
from poolbench_steerer.plugin.spec import Edit, Steering


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
