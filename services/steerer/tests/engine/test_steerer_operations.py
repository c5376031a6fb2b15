"""Every operation and selector in the real engine: against Transformers, alone and in company."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poolbench_steerer.engine import Generation, GenerationRequest
from poolbench_steerer.plugin.spec import Edit, Steering

NUM_NEW = 10  # as the requests ask for


def generate(host: Any, model_ref: Any, requests: Sequence[GenerationRequest]) -> list[Generation]:
    return host.run(model_ref, lambda engine: engine.generate(requests))


def texts(made: Sequence[Generation]) -> list[tuple[int, ...]]:
    return [generation.token_ids for generation in made]


def test_64_settings_equal_transformers_and_64_single_runs(
    host, model_ref, requests, vector_ids, unit_vectors, reference, transformers_greedy
):
    vectors = dict(zip(vector_ids, unit_vectors, strict=True))
    made = generate(host, model_ref, requests)
    batch = texts(made)
    single = [texts(generate(host, model_ref, [request]))[0] for request in requests]
    oracle = [
        transformers_greedy(reference, reference.model.layers, r.prompt_ids, r.steering, vectors, NUM_NEW)
        for r in requests
    ]
    assert batch == oracle
    assert single == oracle
    unsteered = texts(generate(host, model_ref, [GenerationRequest(r.prompt_ids, NUM_NEW) for r in requests]))
    assert sum(a != b for a, b in zip(batch, unsteered, strict=True)) > 40
    for request, generation in zip(requests, made, strict=True):
        if request.steering is None:
            assert generation.receipt is None
            continue
        positions = request.steering.num_positions(len(request.prompt_ids), NUM_NEW)
        for layer in generation.receipt.by_layer:
            assert (layer.positions_expected, layer.positions_applied) == (positions, positions)
            assert layer.positions_changed == positions or not all(edit.additive for edit in layer.edits)
        assert [e["operation"] for e in generation.receipt.to_json()["edits"]] == [
            edit.operation for edit in request.steering.edits
        ]


def test_a_text_does_not_depend_on_its_neighbours(host, model_ref, requests):
    chosen = [5, 22, 47]
    alone = texts(generate(host, model_ref, [requests[index] for index in chosen]))
    for others in (requests[:20], requests[30:], list(reversed(requests))):
        company = [requests[5], *others, requests[22], requests[47]]
        made = texts(generate(host, model_ref, company))
        assert [made[0], *made[-2:]] == alone


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
