"""An engine that schedules ahead, as vLLM does on GPUs: a step is under way when a text ends, and is not counted."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from services.steerer.tests.engine.conftest import generate, many_settings, scheduling_ahead

from poolbench_steerer.engine import GenerationRequest
from poolbench_steerer.engine.requests import sampling_params
from poolbench_steerer.plugin.spec import Edit, Pooling, Reading, Steering

pytestmark = [
    pytest.mark.lane(name="engines"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU every engine schedules ahead"),
]


@pytest.fixture(scope="module")
def ahead(tiny_model: Path, steerer_config: Any, unit_vectors: Any) -> Iterator[Any]:
    """A host like `host`, with the same vectors, whose engine schedules a step ahead."""
    from poolbench_steerer.host import EngineHost

    with scheduling_ahead():
        host = EngineHost(steerer_config)
        host.run(_ref(tiny_model), lambda engine: engine.register(list(unit_vectors)))
    yield host
    host.close()


def _ref(model: Path) -> Any:
    from poolbench.config import resolve_model

    return resolve_model(str(model))


def beyond_of(engine: Any, patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the positions behind each text that ends."""
    seen: list[int] = []
    count = engine._rows.count

    async def counted(row: int, end: int) -> Any:
        found = await count(row, end)
        seen.append(found.beyond)
        return found

    patch.setattr(engine._rows, "count", counted)
    return seen


def assert_pooled_alike(pooled: Any, other: Any) -> None:
    assert (pooled is None) == (other is None)
    if pooled is not None:
        for vectors, others in ((pooled.prompt, other.prompt), (pooled.answer, other.answer)):
            assert vectors.keys() == others.keys()
            for name, one in vectors.items():
                assert one.reason == others[name].reason
                if one.reason is None:
                    np.testing.assert_allclose(one.vector, others[name].vector, rtol=0, atol=1e-4)


def test_all_kinds_of_texts_equal_those_of_an_engine_that_waits(ahead, host, model_ref, requests):
    """Steered in every way and not at all, in chunks, twice what a batch takes, and more than the cache holds."""
    reading = [Reading(request.steering.edits[0].vector_id, 3) for request in requests[:1]]
    asked = [
        GenerationRequest(
            r.prompt_ids, 30, r.steering, ignore_eos=True, readings=tuple(reading) if i % 3 else (),
            pooling=Pooling(i % 6, ("A1_mean", "A5_median")) if i % 2 else None,
        )
        for i, r in enumerate(requests)
    ]  # fmt: skip

    async def job(engine: Any) -> tuple[Any, int]:
        made = await engine.generate(asked)
        return made, engine.num_repeated

    made, num_repeated = ahead.run(model_ref, job)
    waiting = generate(host, model_ref, asked)
    assert [(text.token_ids, text.receipt) for text in made] == [(text.token_ids, text.receipt) for text in waiting]
    for text, other in zip(made, waiting, strict=True):
        np.testing.assert_allclose(text.scores, other.scores, rtol=0, atol=1e-4)
        assert_pooled_alike(text.pooled, other.pooled)
    assert num_repeated > 0  # some were preempted


@pytest.mark.parametrize("positions", ["generated", "all", "prompt", 20])
def test_a_step_behind_the_last_token_is_not_counted(
    ahead, host, model_ref, prompts, vector_ids, positions, monkeypatch
):
    """Texts end at a token that only the model's output tells. Projections change some positions and others not."""
    settings = [s for s in many_settings(vector_ids, 6, 60.0, 40) if s is not None]
    asked = [
        GenerationRequest(
            prompts[i % 16][:18],
            24,
            Steering(s.edits, positions),
            ignore_eos=True,
            pooling=Pooling(i % 6, ("A1_mean",)),
        )
        for i, s in enumerate(settings)
    ]
    whole = generate(host, model_ref, asked)
    stops = [text.token_ids[4 + i % 9] for i, text in enumerate(whole)]
    ends = [text.token_ids.index(stop) + 1 for text, stop in zip(whole, stops, strict=True)]

    async def stopped(engine: Any, request: GenerationRequest, stop: int, slots: dict[str, int]) -> Any:
        params = sampling_params(request)
        params.stop_token_ids = [stop]
        *_, (_, piece) = [output async for output in engine.outputs(request, params, slots)]
        return piece

    async def job(engine: Any) -> Any:
        with monkeypatch.context() as patch, engine.bank.in_use(vector_ids) as slots:
            beyond = beyond_of(engine, patch)
            pairs = zip(asked, stops, strict=True)
            return await asyncio.gather(*(stopped(engine, *pair, slots) for pair in pairs)), beyond

    pieces, beyond = ahead.run(model_ref, job)
    waiting, none_beyond = host.run(model_ref, job)
    assert [piece.token_ids for piece in pieces] == [
        text.token_ids[:end] for text, end in zip(whole, ends, strict=True)
    ]
    assert [piece.receipt for piece in pieces] == [piece.receipt for piece in waiting]
    for piece, other in zip(pieces, waiting, strict=True):
        assert_pooled_alike(piece.pooled, other.pooled)
    assert not any(none_beyond)
    assert max(beyond) == (0 if positions == "prompt" else 1)


async def begun(engine: Any, request: GenerationRequest, slots: dict[str, int], num_pieces: int) -> None:
    """Generate a text, and leave it after so many pieces."""
    from vllm.sampling_params import RequestOutputKind

    params = sampling_params(request)
    params.output_kind = RequestOutputKind.DELTA
    async with aclosing(engine.outputs(request, params, slots)) as outputs:
        async for _ in outputs:
            num_pieces -= 1
            if num_pieces < 0:
                return


def test_a_row_serves_the_next_text_while_a_step_of_the_last_is_under_way(ahead, model_ref, prompts, vector_ids):
    """Texts are left between two steps, and others take their rows at once."""
    steering = Steering((Edit(vector_ids[0], 2, 30.0), Edit(vector_ids[1], 4, 5.0, "clamp")))
    request = GenerationRequest(prompts[3], 60, steering, ignore_eos=True, pooling=Pooling(3, ("A1_mean",)))

    async def job(engine: Any) -> None:
        (alone,) = await engine.generate([request])
        for num_pieces in range(6):
            with engine.bank.in_use(vector_ids) as slots:
                cut = [begun(engine, request, slots, num_pieces) for _ in range(40)]
                await asyncio.gather(*cut)
            made = await engine.generate([request] * 20)
            assert [(text.token_ids, text.receipt) for text in made] == [(alone.token_ids, alone.receipt)] * 20
            for text in made:
                assert_pooled_alike(text.pooled, alone.pooled)

    ahead.run(model_ref, job)
