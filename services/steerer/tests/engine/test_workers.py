"""A model that is split among two workers: both hold the vectors, steer alike, and count the same."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from services.steerer.tests.engine.conftest import generate

from poolbench_steerer.engine import GenerationRequest
from poolbench_steerer.engine.selftest import self_test
from poolbench_steerer.engine.workers import measure_all_reduce
from poolbench_steerer.plugin.spec import Condition, Pooling, Reading

pytestmark = [
    pytest.mark.lane(name="engines"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="one GPU holds one worker"),
]


@pytest.fixture(scope="module")
def split(model_ref: Any, steerer_config: Any, unit_vectors: np.ndarray) -> Iterator[Any]:
    """A host like `host`, with the same vectors, whose model two workers share."""
    from poolbench_steerer.host import EngineHost

    host = EngineHost(steerer_config.model_copy(update={"tensor_parallel": 2}))
    host.run(model_ref, lambda engine: engine.register(list(unit_vectors)))
    yield host
    host.close()


def test_two_workers_steer_and_count_as_one(split, host, model_ref, requests, vector_ids) -> None:
    """Steered in every way and not at all, every fourth with a condition, twice what one batch takes."""
    asked = []
    for index, request in enumerate(requests):
        steering = request.steering
        if index % 4 == 0 and steering is not None:
            steering = replace(steering, where=Condition(vector_ids[index % 5], 0, 0.0, above=index % 8 == 0))
        asked.append(replace(request, steering=steering, logprobs=3, readings=(Reading(vector_ids[3], 4),)))
        asked[-1] = replace(asked[-1], pooling=Pooling(index % 6, ("A1_mean",)))
    assert max(split.run(model_ref, self_test).values()) < 0.01
    num_equal = 0
    for ours, alone in zip(generate(split, model_ref, asked), generate(host, model_ref, asked), strict=True):
        # The sum over workers rounds otherwise, so that a text may go another way at a near tie.
        assert ours.first_logprobs == pytest.approx(alone.first_logprobs, abs=1e-3)
        assert ours.scores[0] == pytest.approx(alone.scores[0], abs=1e-3)
        by_two, by_one = (text.pooled.prompt["A1_mean"].vector for text in (ours, alone))
        np.testing.assert_allclose(by_two, by_one, rtol=0, atol=1e-3)
        if ours.token_ids == alone.token_ids:
            np.testing.assert_allclose(ours.scores, alone.scores, rtol=0, atol=1e-3)
            assert (ours.receipt is None) == (alone.receipt is None)
            num_equal += 1
        if ours.receipt is not None and alone.receipt is not None:
            assert ours.receipt.positions_expected == alone.receipt.positions_expected
    assert num_equal > len(asked) / 2


def test_the_sum_over_workers_is_timed(split, host, model_ref) -> None:
    measured = split.run(model_ref, measure_all_reduce)
    assert measured["num_workers"] == 2 and measured["median_s"] > 0
    assert measured["num_bytes"] == measured["num_tokens"] * 256 * 4  # width, and bytes of a float32
    assert host.run(model_ref, measure_all_reduce) is None


def test_both_workers_hold_a_vector_that_comes_later(split, model_ref, prompts) -> None:
    late = np.random.default_rng(9).standard_normal(256).astype(np.float32)

    async def job(engine: Any) -> list[list[float]]:
        (key,) = await engine.register([late])
        request = GenerationRequest(prompts[0], 1, readings=(Reading(key, 2),))
        (text,) = await engine.generate([request])
        assert np.isfinite(text.scores).all()
        last = len(prompts[0]) - 1
        scores = await engine.llm.collective_rpc(
            "steering_scores", args=([(row, last, last + 1, 1) for row in range(48)],)
        )
        assert text.scores[0][0] in np.array(scores[0])
        return scores

    first, second = split.run(model_ref, job)
    np.testing.assert_array_equal(first, second)  # NaN in rows that did not read
