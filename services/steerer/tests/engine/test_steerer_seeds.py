"""Sampled texts with a seed: the same whatever is computed beside them, and however their prompt is cut up."""

from __future__ import annotations

from typing import Any

import numpy as np

from poolbench_steerer.engine import GenerationRequest
from poolbench_steerer.plugin.runner import keep_generators
from poolbench_steerer.plugin.spec import Edit, Steering


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

    together, alone = host.run(model_ref, job)
    assert together == alone
    assert len({made.token_ids for made in together}) == len(together)
    assert host.keeper.num_restarts == 0
