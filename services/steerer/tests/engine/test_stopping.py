"""Texts that end because of what is read along: rules by hand, and in the real engine beside other texts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from services.steerer.tests.conftest import pieces_of, settle
from services.steerer.tests.engine.conftest import many_settings

from poolbench.errors import InputError
from poolbench_steerer.engine import GenerationRequest
from poolbench_steerer.engine.stopping import StopRule, Watch
from poolbench_steerer.plugin.spec import Reading

SCORES = [1.0, 3.0, 3.5, 2.0, 3.1, 3.2, 3.3, 0.0]


@pytest.mark.parametrize(
    ("rule", "end", "value"),
    [
        (StopRule(0, 3.0), 2, 3.5),  # 3 is not above 3
        (StopRule(0, 3.0, num_tokens=3), 6, 3.3),  # 3.5 and 3.1 do not follow each other
        (StopRule(0, 0.5, above=False), 7, 0.0),
        (StopRule(0, 2.4, statistic="mean"), 2, 2.5),
        (StopRule(0, 2.4, num_tokens=2, statistic="mean"), 5, 15.8 / 6),  # the mean of four is 2.375
        (StopRule(0, 3.2, num_tokens=4, statistic="max"), 5, 3.5),
        (StopRule(0, 9.0), None, None),
    ],
)
def test_rules_by_hand(rule: StopRule, end: int | None, value: float | None) -> None:
    """The scores come in pieces of three."""
    watch, fired = Watch([rule]), None
    for begin in range(0, len(SCORES), 3):
        fired = watch.first([(score,) for score in SCORES[begin : begin + 3]])
        if fired is not None:
            assert (begin + fired[0], fired[1].rule) == (end, rule)
            assert fired[1].value == pytest.approx(value)
            return
    assert end is None


def test_a_threshold_is_a_number() -> None:
    for threshold in (float("nan"), float("inf")):
        with pytest.raises(InputError, match="must be finite"):
            StopRule(0, threshold)


@pytest.mark.lane(name="engines")
@pytest.mark.parametrize("in_steps", [True, False])
def test_texts_end_where_their_scores_say_and_others_go_on(host, model_ref, prompts, vector_ids, in_steps) -> None:
    """48 texts at once, steered and not: each third has a rule that the scores of the whole text meet at its token."""
    settings = many_settings(vector_ids, 6, 60.0, 48)
    asked = [
        GenerationRequest(
            prompts[i % 16], 24, setting, ignore_eos=True, logprobs=1, readings=(Reading(vector_ids[i % 5], 3, 0.5),)
        )
        for i, setting in enumerate(settings)
    ]
    whole = host.run(model_ref, lambda engine: engine.generate(asked))
    ruled, ends = [], []
    for i, (request, text) in enumerate(zip(asked, whole, strict=True)):
        scores = np.array(text.scores)[:, 0]
        record = int(np.argmax(scores[:20]))  # no score before it is as high
        before = scores[:record].max(initial=scores[record] - 1)
        stop = StopRule(0, float(before + scores[record]) / 2)
        ruled.append(replace(request, stops=(stop,)) if i % 3 else request)
        ends.append(record + 1 if i % 3 else 24)

    async def job(engine: Any) -> list[Any]:
        import asyncio

        return await asyncio.gather(*(pieces_of(engine, request, in_steps=in_steps) for request in ruled))

    for pieces, text, end, request in zip(host.run(model_ref, job), whole, ends, ruled, strict=True):
        assert in_steps or len(pieces) == 1
        token_ids = sum((piece.token_ids for piece in pieces), ())
        assert token_ids == text.token_ids[:end]
        scores = [values for piece in pieces for values in piece.scores]
        np.testing.assert_allclose(scores, text.scores[:end], rtol=0, atol=1e-4)
        assert sum(len(piece.logprobs) for piece in pieces) == end
        stopped = pieces[-1].stopped
        assert (stopped is not None) == bool(request.stops)
        assert pieces[-1].finish_reason == ("stop" if request.stops else "length")
        if stopped is not None:
            assert stopped.value == pytest.approx(text.scores[end - 1][0], abs=1e-4)
        if request.steering is not None and request.steering.live_by_layer:
            positions = request.steering.num_positions(len(request.prompt_ids), end)
            assert pieces[-1].receipt.by_layer[0].positions_expected == positions if positions else True
    settle(host)  # nothing is in use any more
