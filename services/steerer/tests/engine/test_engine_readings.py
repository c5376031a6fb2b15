"""Directions that are read along, in the real engine: against Transformers with hooks, in every kind of batch."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from services.steerer.tests.conftest import pieces_of
from services.steerer.tests.engine.conftest import in_worker, many_settings, transformers_scores

from poolbench.errors import ReceiptError
from poolbench_steerer.engine import Generation, GenerationRequest
from poolbench_steerer.plugin.spec import MAX_READINGS, Edit, Reading, Steering

pytestmark = pytest.mark.lane(name="engines")

#: float32 products on a GPU round to TF32 in attention.
TOLERANCE = 0.05 if torch.cuda.is_available() else 1e-4
NORM = 60.0


@pytest.fixture
def by_hand(reference: Any, vector_ids: list[str], unit_vectors: np.ndarray) -> Callable[..., np.ndarray]:
    """The scores at every position of a text, by Transformers."""
    vectors = dict(zip(vector_ids, unit_vectors, strict=True))
    return lambda request, text: transformers_scores(reference, reference.model.layers, request, text, vectors)


def check_all(requests: Sequence[GenerationRequest], made: Sequence[Generation], by_hand: Any) -> None:
    for request, generation in zip(requests, made, strict=True):
        assert len(generation.scores) == (len(generation.token_ids) if request.readings else 0)
        if request.readings:
            expected = by_hand(request, generation.token_ids)[len(request.prompt_ids) - 1 : -1]
            np.testing.assert_allclose(generation.scores, expected, rtol=0, atol=TOLERANCE)


def readings_for(ids: Sequence[str], steering: Steering | None, index: int) -> tuple[Reading, ...]:
    """None, at the layer of an edit, along the direction of an edit at another layer, or several."""
    edit = steering.edits[0] if steering is not None else Edit(ids[0], 0, 1.0)
    ways = [
        (),
        (Reading(ids[(index + 3) % len(ids)], edit.layer),),
        (Reading(edit.vector_id, (edit.layer + 2) % 6, -1.5),),
        tuple(Reading(ids[(index + k) % len(ids)], (edit.layer + k // 2) % 6, 0.25 * k) for k in range(MAX_READINGS)),
    ]
    return ways[index % 4]


def test_a_batch_of_requests_with_different_readings_equals_transformers(
    host, model_ref, requests, vector_ids, by_hand
):
    """Steered in every way and not at all; long prompts come in chunks."""
    reading = [
        replace(request, readings=readings_for(vector_ids, request.steering, index // 2))
        for index, request in enumerate(requests)
    ]
    made = host.run(model_ref, lambda engine: engine.generate(reading))
    check_all(reading, made, by_hand)
    without = host.run(model_ref, lambda engine: engine.generate(requests))
    assert [g.token_ids for g in made] == [g.token_ids for g in without]
    assert [g.receipt for g in made] == [g.receipt for g in without]


def test_preempted_requests_are_read_alike(host, model_ref, prompts, vector_ids, by_hand):
    """The cache holds about 1,000 tokens; 16 requests that grow to 130 each don't fit at once."""
    long = sum(prompts, ())
    settings = [None, *many_settings(vector_ids, 6, NORM, 20)][:16]
    requests = [
        GenerationRequest(
            long[i : i + 70], 60, steering, ignore_eos=True, readings=readings_for(vector_ids, steering, i)
        )
        for i, steering in enumerate(settings)
    ]

    async def job(engine: Any) -> tuple[list[Generation], int]:
        before = engine.num_repeated
        return await engine.generate(requests), engine.num_repeated - before

    made, num_repeated = host.run(model_ref, job)
    assert num_repeated > 0
    check_all(requests, made, by_hand)


def test_a_prompt_from_the_prefix_cache_is_read_from_its_last_position_on(
    host, model_ref, prompts, vector_ids, by_hand
):
    request = GenerationRequest(
        sum(prompts, ())[:100], 6, ignore_eos=True, readings=(Reading(vector_ids[2], 1), Reading(vector_ids[4], 5))
    )

    async def job(engine: Any) -> list[Generation]:
        await engine.llm.reset_prefix_cache()
        return [(await engine.generate([one]))[0] for one in (request, request, replace(request, read_prompt=True))]

    check_all([request] * 3, host.run(model_ref, job), by_hand)


def test_a_prompt_that_fills_several_steps_is_read_whole_if_asked(host, model_ref, prompts, vector_ids, by_hand):
    steering = Steering((Edit(vector_ids[1], 2, 0.4 * NORM),), 50)
    request = GenerationRequest(
        sum(prompts, ())[:200], 5, steering, ignore_eos=True, readings=(Reading(vector_ids[1], 2),), read_prompt=True
    )

    pieces = host.run(model_ref, lambda engine: pieces_of(engine, request))
    expected = by_hand(request, [token for piece in pieces for token in piece.token_ids])
    first, *of_prompt = pieces[0].prompt_scores
    assert first is None
    assert not any(piece.prompt_scores for piece in pieces[1:])
    scores = [*of_prompt, *(values for piece in pieces for values in piece.scores)]
    np.testing.assert_allclose(scores, expected[:-1], rtol=0, atol=TOLERANCE)


def test_the_length_of_a_vector_does_not_matter(host, model_ref, prompts, vector_ids, unit_vectors):
    async def job(engine: Any) -> list[Generation]:
        ids = [vector_ids[3], *await engine.register([1e-14 * unit_vectors[3], 1e14 * unit_vectors[3]])]
        readings = tuple(Reading(key, 3) for key in ids)
        return await engine.generate([GenerationRequest(prompts[4], 4, readings=readings, ignore_eos=True)])

    (made,) = host.run(model_ref, job)
    np.testing.assert_allclose(made.scores, np.array(made.scores)[:, :1].repeat(3, axis=1), rtol=1e-5)


def forget_to_read(worker: Any) -> None:
    worker.steering.reads_at = lambda layer: None


def read_again(worker: Any) -> None:
    del worker.steering.reads_at


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device reads without the host")
def test_a_position_that_was_not_read_fails_the_text(host, model_ref, prompts, vector_ids):
    request = GenerationRequest(prompts[0], 2, readings=(Reading(vector_ids[0], 2),), ignore_eos=True)

    async def job(engine: Any) -> None:
        await engine.generate([request])
        await in_worker(engine, forget_to_read)
        try:
            with pytest.raises(ReceiptError, match="was not read"):
                await engine.generate([request])
        finally:
            await in_worker(engine, read_again)

    host.run(model_ref, job)
