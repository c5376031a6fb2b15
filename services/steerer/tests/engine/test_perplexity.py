"""Log-probabilities and perplexities of prompts, many settings in one batch, against Transformers."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from services.steerer.tests.conftest import pieces_of
from services.steerer.tests.engine.conftest import many_settings, transformers_logprobs

from poolbench.errors import InputError
from poolbench_steerer.engine import GenerationRequest, Piece
from poolbench_steerer.engine.perplexity import score_continuations
from poolbench_steerer.errors import PromptTooLongError

pytestmark = pytest.mark.lane(name="engines")

STRONG = 60.0


def test_steered_prompts_of_all_lengths_equal_transformers(
    host, model_ref, reference, prompts, vector_ids, unit_vectors: np.ndarray
):
    """Prompts longer than a chunk, requests preempted, and cached prefixes of the same prompts unsteered."""
    vectors = dict(zip(vector_ids, unit_vectors, strict=True))
    long = sum(prompts, ())
    asked = [
        GenerationRequest(long[: 20 + 3 * index], 2, steering, ignore_eos=True, prompt_logprobs=1)
        for index, steering in enumerate(many_settings(vector_ids, 6, STRONG, 32))
    ]

    async def job(engine: Any) -> list[tuple[Piece, Any]]:
        texts = await asyncio.gather(*(pieces_of(engine, request) for request in asked))
        return [(pieces[0], pieces[-1].receipt) for pieces in texts]

    moved = 0
    for request, (piece, receipt) in zip(asked, host.run(model_ref, job), strict=True):
        ids, steps = request.prompt_ids, piece.prompt_logprobs
        assert steps is not None
        assert (len(steps), steps[0]) == (len(ids), None)
        found = [step[token] for token, step in zip(ids[1:], steps[1:], strict=True) if step is not None]
        expected = transformers_logprobs(reference, reference.model.layers, ids, request.steering, vectors)
        assert found == pytest.approx(expected, abs=1e-3)
        assert (receipt is None) == (request.steering is None)
        plain = transformers_logprobs(reference, reference.model.layers, ids, None, vectors)
        moved += request.steering is not None and expected != pytest.approx(plain, abs=0.1)
    assert moved >= 10  # those whose positions are of the prompt


WINDOW = 256  # of the test engine; prompts are computed in chunks of 96 tokens


@pytest.fixture(scope="module")
def long_ids(prompts: list[tuple[int, ...]]) -> tuple[int, ...]:
    ids = sum(prompts, ()) * 3
    assert len(ids) >= WINDOW
    return ids


def test_texts_of_all_lengths_in_one_batch_equal_transformers(host, model_ref, reference, prompts, long_ids):
    pairs: list[Any] = [
        ((), long_ids[: WINDOW - 1]),  # as long as fits
        (long_ids[: WINDOW - 2], long_ids[WINDOW - 2 : WINDOW - 1]),  # one token after a long prefix
        (prompts[0][:1], prompts[0][1:2]),  # one token after one
        (long_ids[:100], long_ids[100:103]),
        *[((), prompt[:2]) for prompt in prompts],
        *[(prompt[:5], long_ids[:150]) for prompt in prompts],
    ]
    scored = host.run(model_ref, lambda engine: score_continuations(engine, pairs))
    alone = host.run(model_ref, lambda engine: score_continuations(engine, pairs[:1]))
    assert alone[0].mean_nll == pytest.approx(scored[0].mean_nll, abs=1e-5)
    for (prefix, text), score in zip(pairs, scored, strict=True):
        ids = torch.tensor([*prefix, *text])
        with torch.inference_mode():
            logprobs = torch.log_softmax(reference(ids[None]).logits[0, :-1].double(), dim=-1)
        nll = -logprobs.gather(1, ids[1:, None])[max(len(prefix) - 1, 0) :, 0]
        assert score.num_tokens == len(nll) == len(text) - (not prefix)
        assert score.mean_nll == pytest.approx(float(nll.mean()), abs=1e-4)


def test_what_cannot_be_scored_is_named(host, model_ref, long_ids):
    with pytest.raises(InputError, match="text 1 has no token"):
        host.run(model_ref, lambda engine: score_continuations(engine, [((5,), (6,)), ((), (5,))]))
    with pytest.raises(PromptTooLongError, match="text 0: 256 prompt tokens"):
        host.run(model_ref, lambda engine: score_continuations(engine, [((), long_ids[:WINDOW])]))
