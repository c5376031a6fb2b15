"""Edits with a condition in the real engine, against Transformers with hooks, in batches with every other kind."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from services.steerer.tests.engine.conftest import (
    NUM_LAYERS,
    generate,
    many_settings,
    transformers_greedy,
    transformers_scores,
)

from poolbench_steerer.engine import GenerationRequest
from poolbench_steerer.plugin.spec import Condition, Reading

pytestmark = pytest.mark.lane(name="engines")


@pytest.fixture(scope="module")
def conditional(prompts: Any, vector_ids: list[str], unit_vectors: np.ndarray, reference: Any) -> list[Any]:
    """256 requests with conditions of their own, of which half the positions pass; long prompts come in chunks."""
    vectors = dict(zip(vector_ids, unit_vectors, strict=True))
    long = sum(prompts, ())
    medians: dict[tuple[str, int], float] = {}
    made = []
    for index, steering in enumerate(many_settings(vector_ids, NUM_LAYERS, 60.0, 256)):
        request = GenerationRequest(long[7 * index % 90 :][: 20 + index % 40], 8, steering, ignore_eos=True)
        if steering is not None:
            key, layer = vector_ids[index % 5], min(edit.layer for edit in steering.edits) * (index % 3 > 0)
            if (key, layer) not in medians:
                reading = replace(request, steering=None, readings=(Reading(key, layer),))
                scores = transformers_scores(reference, reference.model.layers, reading, (), vectors)
                medians[key, layer] = float(np.median(scores))
            where = Condition(key, layer, medians[key, layer] + 0.01 * index, above=index % 2 == 0)
            request = replace(request, steering=replace(steering, where=where))
        made.append(request)
    return made


def test_256_conditions_in_one_burst_equal_transformers(
    host, model_ref, conditional, vector_ids, unit_vectors, reference
):
    vectors = dict(zip(vector_ids, unit_vectors, strict=True))
    made = generate(host, model_ref, conditional)
    some = range(0, len(conditional), 7)
    for index in some:
        request = conditional[index]
        by_hand = transformers_greedy(
            reference, reference.model.layers, request.prompt_ids, request.steering, vectors, request.max_tokens
        )
        assert made[index].token_ids == by_hand, index
    receipts = [text.receipt for text in made if text.receipt is not None]
    spared = [receipt.positions_spared for receipt in receipts]
    expected = [receipt.by_layer[0].positions_expected for receipt in receipts if receipt.by_layer]
    assert 0.2 * sum(expected) < sum(spared) < 0.8 * sum(expected)  # both sides occur
    assert any(0 < part < whole for part, whole in zip(spared, expected, strict=False))


def test_a_condition_that_always_holds_is_none_and_one_that_never_does_spares_all(
    host, model_ref, requests, vector_ids
):
    asked = [request for request in requests if request.steering is not None][:32]

    def with_bound(request: Any, threshold: float) -> Any:
        where = Condition(vector_ids[0], min(edit.layer for edit in request.steering.edits), threshold)
        return replace(request, steering=replace(request.steering, where=where))

    plain, unsteered = generate(host, model_ref, asked), [replace(request, steering=None) for request in asked]
    always = generate(host, model_ref, [with_bound(request, -1e7) for request in asked])
    never = generate(host, model_ref, [with_bound(request, 1e7) for request in asked])
    assert [text.token_ids for text in always] == [text.token_ids for text in plain]
    assert [text.token_ids for text in never] == [text.token_ids for text in generate(host, model_ref, unsteered)]
    assert all(text.receipt.positions_changed == 0 for text in never)
    for text, request in zip(never, asked, strict=True):
        positions = request.steering.num_positions(len(request.prompt_ids), len(text.token_ids))
        assert text.receipt.positions_spared == positions
