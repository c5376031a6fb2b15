"""Texts that are pooled, in the real engine: against Transformers with hooks, and what becomes of their states."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from services.steerer.tests.conftest import pieces_of, standing_still
from services.steerer.tests.engine.conftest import NUM_LAYERS, generate, hooked, in_worker, many_settings
from services.steerer.tests.engine.test_engine_readings import readings_for
from tests.waiting import until

from poolbench.errors import InputError, LayerError, ReceiptError
from poolbench_steerer.engine import Generation, GenerationRequest
from poolbench_steerer.engine import requests as limits
from poolbench_steerer.engine.rows import Budget
from poolbench_steerer.plugin.spec import Pooling

pytestmark = pytest.mark.lane(name="engines")

TOLERANCE = 0.05 if torch.cuda.is_available() else 1e-4
NAMES = ("P1_last_token", "A11_mean_all", "P3_first_content")  # attention sinks count for none of them
States = Callable[[GenerationRequest, Sequence[int]], np.ndarray]


@pytest.fixture
def by_hand(reference: Any, vector_ids: list[str], unit_vectors: np.ndarray) -> States:
    """The states of a prompt and of a text at the layer that is pooled, behind the edits, by Transformers [T, D]."""
    vectors = dict(zip(vector_ids, unit_vectors, strict=True))

    def states(request: GenerationRequest, text: Sequence[int]) -> np.ndarray:
        kept: list[torch.Tensor] = []
        assert request.pooling is not None
        with hooked(reference.model.layers, request.steering, len(request.prompt_ids), vectors), torch.inference_mode():
            keep = reference.model.layers[request.pooling.layer].register_forward_hook(
                lambda _module, _inputs, output: kept.append(output[0] if isinstance(output, tuple) else output)
            )
            reference.model(torch.tensor([[*request.prompt_ids, *text]]))
            keep.remove()
        return kept[0].reshape(-1, kept[0].shape[-1]).double().numpy()

    return states


def check_all(requests: Sequence[GenerationRequest], made: Sequence[Generation], by_hand: States) -> None:
    for request, text in zip(requests, made, strict=True):
        if request.pooling is None:
            assert text.pooled is None
            continue
        h_TD, num_prompt = by_hand(request, text.token_ids)[:-1], len(request.prompt_ids)
        special_T = np.isin([*request.prompt_ids, *text.token_ids[:-1]], [0, 1])
        for own_T, vectors in (
            (np.arange(len(h_TD)) < num_prompt, text.pooled.prompt),
            (np.arange(len(h_TD)) >= num_prompt, text.pooled.answer),
        ):
            real = np.flatnonzero(own_T & ~special_T)
            of_all = np.flatnonzero(own_T | special_T)[: None if own_T[-1] else num_prompt]
            expected = (h_TD[real[-1]], h_TD[of_all].mean(axis=0), h_TD[real[0]])
            for name, expected_D in zip(NAMES, expected, strict=True):
                np.testing.assert_allclose(vectors[name].vector, expected_D, rtol=0, atol=TOLERANCE, err_msg=name)


def pooling_of(requests: Sequence[GenerationRequest], vector_ids: Sequence[str]) -> list[GenerationRequest]:
    """Three of four requests are pooled; some read directions beside it, at the same layer too."""
    return [
        replace(
            request,
            pooling=Pooling(index % NUM_LAYERS, NAMES) if index % 4 else None,
            readings=readings_for(vector_ids, request.steering, index // 4)[:3],
        )
        for index, request in enumerate(requests)
    ]


def test_a_batch_of_requests_with_different_pooling_equals_transformers(host, model_ref, requests, vector_ids, by_hand):
    """Steered in every way and not at all; long prompts come in chunks, and some are preempted."""
    asked = pooling_of([replace(request, max_tokens=30) for request in requests], vector_ids)

    async def job(engine: Any) -> tuple[list[Generation], int]:
        before = engine.num_repeated
        return await engine.generate(asked), engine.num_repeated - before

    made, num_repeated = host.run(model_ref, job)
    assert num_repeated > 0
    check_all(asked, made, by_hand)
    without = generate(host, model_ref, [replace(request, pooling=None) for request in asked])
    assert [(text.token_ids, text.receipt) for text in made] == [(text.token_ids, text.receipt) for text in without]
    for text, other in zip(made, without, strict=True):
        np.testing.assert_allclose(text.scores, other.scores, rtol=0, atol=1e-4)


def test_a_prompt_in_the_prefix_cache_is_computed_again(host, model_ref, prompts, by_hand):
    request = GenerationRequest(sum(prompts, ())[:100], 6, ignore_eos=True, pooling=Pooling(2, NAMES))

    async def job(engine: Any) -> list[Generation]:
        await engine.llm.reset_prefix_cache()
        return [(await engine.generate([one]))[0] for one in (replace(request, pooling=None), request, request)]

    _, *made = host.run(model_ref, job)
    check_all([request] * 2, made, by_hand)


def test_vectors_come_with_the_last_piece(host, model_ref, prompts):
    request = GenerationRequest(prompts[2], 5, ignore_eos=True, pooling=Pooling(1, NAMES))
    pieces = host.run(model_ref, lambda engine: pieces_of(engine, request))
    assert [piece.pooled is None for piece in pieces] == [True] * 4 + [False]


def test_an_answer_of_one_token_has_no_vector(host, model_ref, prompts):
    request = GenerationRequest(prompts[2], 1, ignore_eos=True, pooling=Pooling(1, ("A1_mean",)))
    (made,) = generate(host, model_ref, [request])
    assert made.pooled.prompt["A1_mean"].vector.shape == (256,)
    assert made.pooled.answer["A1_mean"].vector is None
    assert "no real token" in made.pooled.answer["A1_mean"].reason


def test_what_cannot_be_pooled_is_refused(host, model_ref, prompts, monkeypatch):
    def request(layer: int) -> GenerationRequest:
        return GenerationRequest(prompts[0], 100, pooling=Pooling(layer, NAMES))

    with pytest.raises(LayerError, match="nearest 5"):
        generate(host, model_ref, [request(6)])
    monkeypatch.setattr(limits, "MAX_STATE_BYTES", 50 * 1024)
    with pytest.raises(InputError, match="the states of at most 50 of"):
        generate(host, model_ref, [request(2)])


def skip_states(worker: Any) -> None:
    worker.steering.reads_at = lambda layer: None


def keep_states_again(worker: Any) -> None:
    del worker.steering.reads_at


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device reads without the host")
def test_a_state_that_was_not_kept_fails_the_text(host, model_ref, prompts):
    request = GenerationRequest(prompts[0], 3, ignore_eos=True, pooling=Pooling(2, NAMES))

    async def job(engine: Any) -> None:
        await engine.generate([request])
        await in_worker(engine, skip_states)
        try:
            with pytest.raises(ReceiptError, match="not kept at each position"):
                await engine.generate([request])
        finally:
            await in_worker(engine, keep_states_again)

    host.run(model_ref, job)


def num_kept(worker: Any) -> int:
    return len(worker.steering.kept._texts)


def test_states_are_released_with_texts_that_end_and_that_are_left(host, model_ref, prompts, vector_ids):
    settings = many_settings(vector_ids, NUM_LAYERS, 60.0, 60)
    asked = [
        GenerationRequest(prompts[i % 16], 100, steering, ignore_eos=True, pooling=Pooling(i % 6, NAMES))
        for i, steering in enumerate(settings)
    ]

    async def leave_one(engine: Any) -> None:
        from poolbench_steerer.engine.requests import sampling_params

        async with aclosing(engine.outputs(asked[3], sampling_params(asked[3]), {})) as outputs:
            await anext(outputs)

    async def job(engine: Any) -> None:
        await engine.generate([replace(request, max_tokens=3) for request in asked])
        assert await in_worker(engine, num_kept) == 0
        left = engine._rows._state_bytes.left
        with standing_still(host):
            running = asyncio.create_task(engine.generate(asked))
            await until(lambda: engine.rows_in_use == host.config.max_steered_requests)
            assert engine._rows._state_bytes.left < left
            running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await leave_one(engine)
        assert engine.rows_in_use == 0
        assert engine._rows._state_bytes.left == left == limits.MAX_STATE_BYTES
        assert await in_worker(engine, num_kept) == 0

    host.run(model_ref, job)


def test_texts_wait_for_room_for_their_states(host, model_ref, prompts, by_hand):
    """There is room for the states of one text at a time; a text without pooling does not wait."""
    asked = [GenerationRequest(prompts[i], 8, ignore_eos=True, pooling=Pooling(i % 6, NAMES)) for i in range(6)]

    async def job(engine: Any) -> list[Generation]:
        room, engine._rows._state_bytes = engine._rows._state_bytes, Budget(60 * 1024)
        try:
            return await engine.generate([*asked, replace(asked[0], pooling=None)])
        finally:
            engine._rows._state_bytes = room

    check_all(asked, host.run(model_ref, job)[:-1], by_hand)
