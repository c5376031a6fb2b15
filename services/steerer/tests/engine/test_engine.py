"""Every operation in the real engine: against Transformers, by hand, and in the order of their strengths."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from services.steerer.tests.engine.conftest import STRONG, generate, many_settings, texts, transformers_greedy

from poolbench.errors import ReceiptError
from poolbench_steerer.engine import Generation, GenerationRequest
from poolbench_steerer.engine.perplexity import score_continuations
from poolbench_steerer.plugin.spec import Edit, Steering

pytestmark = pytest.mark.lane(name="engines")

NUM_NEW = 12
#: float32 products on a GPU round to TF32 in attention, so log-probabilities move by some 1e-4 with the batch.
ON_GPU = torch.cuda.is_available()


def requests_for(prompts: Sequence[tuple[int, ...]], steerings: Sequence[Steering | None]) -> list[GenerationRequest]:
    return [
        GenerationRequest(prompt, NUM_NEW, steering, ignore_eos=True)
        for prompt, steering in zip(prompts, steerings, strict=True)
    ]


@pytest.fixture(scope="module")
def settings(vector_ids: Any) -> list[Steering | None]:
    """16 different ways to steer, two of them not at all."""
    return many_settings(vector_ids, 6, STRONG, 16)


def test_an_early_end_of_text_is_expected_too(host, model_ref, prompts, vector_ids, unit_vectors):
    """Steering by the head's own row for EOS after the last block ends a text at once."""
    head = torch.nn.functional.normalize(torch.tensor(unit_vectors[0]), dim=0).numpy()

    async def job(engine: Any) -> list[Generation]:
        (key,) = await engine.register([head])
        best = int(np.argmax(await engine.head_logits(1e5 * head)))
        steering = Steering((Edit(key, 5, 1e5),))
        made = await engine.generate([GenerationRequest(prompts[2], 6, steering, ignore_eos=True)])
        assert made[0].token_ids == (best,) * 6
        return made

    assert host.run(model_ref, job)[0].receipt.positions_changed == 6


@pytest.mark.parametrize("guarded", [True, False])
def test_prefix_cache_never_serves_another_steering(host, model_ref, prompts, vector_ids, monkeypatch, guarded):
    """With the salt an unsteered request after a steered one is clean; without it the hazard is real."""
    if not guarded:
        monkeypatch.setattr(Steering, "cache_salt", lambda self, num_prompt_tokens: None)
    prompt = sum(prompts, ())[:100]  # three whole cache blocks
    steered = GenerationRequest(prompt, 4, Steering((Edit(vector_ids[1], 1, 3 * STRONG),), "all"), ignore_eos=True)
    plain = GenerationRequest(prompt, NUM_NEW, ignore_eos=True)

    async def job(engine: Any) -> tuple[Any, ...]:
        await engine.llm.reset_prefix_cache()
        clean = await engine.generate([plain])
        await engine.llm.reset_prefix_cache()
        await engine.generate([steered])
        after = await engine.generate([plain])
        await engine.llm.reset_prefix_cache()
        return clean[0].token_ids, after[0].token_ids

    clean, after = host.run(model_ref, job)
    assert (clean == after) is guarded


def test_a_slot_that_lost_its_vector_fails_the_request(host, model_ref, prompts, vector_ids, unit_vectors):
    request = requests_for(prompts[:1], [Steering((Edit(vector_ids[4], 2, STRONG),))])

    async def job(engine: Any) -> None:
        slot = engine.bank.entry(vector_ids[4]).slot
        await engine.llm.collective_rpc("steering_upload", args=([slot], bytes(4 * 256)))
        try:
            with pytest.raises(ReceiptError, match=r"positions changed by layer \{\}, expected \{2: 12\}"):
                await engine.generate(request)
        finally:
            await engine.llm.collective_rpc("steering_upload", args=([slot], unit_vectors[4].tobytes()))
        await engine.generate(request)

    host.run(model_ref, job)


def test_scores_are_unsteered_beside_steered_requests(host, model_ref, prompts, settings):
    pair = [(prompts[4][:3], prompts[4][3:])]

    async def job(engine: Any) -> tuple[float, float]:
        alone = await score_continuations(engine, pair)
        both = await asyncio.gather(score_continuations(engine, pair), engine.generate(requests_for(prompts, settings)))
        return alone[0].mean_nll, both[0][0].mean_nll

    alone, beside = host.run(model_ref, job)
    assert alone == pytest.approx(beside, abs=1e-5)


NUM_OPERATION_TOKENS = 10  # as the requests ask for


def test_64_settings_equal_transformers_and_64_single_runs(
    host, model_ref, requests, vector_ids, unit_vectors, reference
):
    vectors = dict(zip(vector_ids, unit_vectors, strict=True))
    made = generate(host, model_ref, requests)
    batch = texts(made)
    single = [texts(generate(host, model_ref, [request]))[0] for request in requests]
    oracle = [
        transformers_greedy(reference, reference.model.layers, r.prompt_ids, r.steering, vectors, NUM_OPERATION_TOKENS)
        for r in requests
    ]
    assert batch == oracle
    assert single == oracle
    unsteered = texts(
        generate(host, model_ref, [GenerationRequest(r.prompt_ids, NUM_OPERATION_TOKENS) for r in requests])
    )
    assert sum(a != b for a, b in zip(batch, unsteered, strict=True)) > 40
    for request, generation in zip(requests, made, strict=True):
        if request.steering is None:
            assert generation.receipt is None
            continue
        positions = request.steering.num_positions(len(request.prompt_ids), NUM_OPERATION_TOKENS)
        for layer in generation.receipt.by_layer:
            assert (layer.positions_expected, layer.positions_applied) == (positions, positions)
            assert layer.positions_changed == positions or not all(edit.additive for edit in layer.edits)
        assert [e["operation"] for e in generation.receipt.to_json()["edits"]] == [
            edit.operation for edit in request.steering.edits
        ]


def test_projections_already_at_their_target_change_nothing(host, model_ref, prompts, vector_ids):
    """Erasing a second time finds nothing to erase but rounding; with coefficient 0 nothing is asked for."""
    key = vector_ids[0]
    clamp = GenerationRequest(prompts[4], 4, Steering((Edit(key, 2, 3.0, "clamp"),)), ignore_eos=True)
    nothing = [
        GenerationRequest(prompts[4], 4, Steering((Edit(key, 2, 0.0, operation),)), ignore_eos=True)
        for operation in ("add", "add_preserving_norm", "erase")
    ]
    plain = GenerationRequest(prompts[4], 4, ignore_eos=True)
    made = generate(host, model_ref, [plain, clamp, *nothing])
    assert len({generation.token_ids for generation in (made[0], *made[2:])}) == 1
    assert made[1].receipt.positions_applied == 4
    assert [generation.receipt.positions_expected for generation in made[2:]] == [0, 0, 0]
