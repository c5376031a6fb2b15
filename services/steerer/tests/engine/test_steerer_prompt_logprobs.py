"""Log-probabilities of prompts under the steered model, many settings in one batch, against Transformers with hooks."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from poolbench_steerer.engine import GenerationRequest, Piece

STRONG = 60.0


def test_steered_prompts_of_all_lengths_equal_transformers(
    host, model_ref, reference, prompts, vector_ids, unit_vectors: np.ndarray, many_settings, transformers_logprobs
):
    """Prompts longer than a chunk, requests preempted, and cached prefixes of the same prompts unsteered."""
    vectors = dict(zip(vector_ids, unit_vectors, strict=True))
    long = sum(prompts, ())
    asked = [
        GenerationRequest(long[: 20 + 3 * index], 2, steering, ignore_eos=True, prompt_logprobs=1)
        for index, steering in enumerate(many_settings(vector_ids, 6, STRONG, 32))
    ]

    async def job(engine: Any) -> list[tuple[Piece, Any]]:
        keys = [edit.vector_id for request in asked if request.steering for edit in request.steering.edits]

        async def one(request: GenerationRequest, slots: dict[str, int]) -> tuple[Piece, Any]:
            pieces: list[Piece] = []
            receipt = await engine.follow(request, slots, lambda piece: bool(pieces.append(piece)))
            return pieces[0], receipt

        with engine.bank.in_use(keys) as slots:
            return list(await asyncio.gather(*(one(request, slots) for request in asked)))

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
