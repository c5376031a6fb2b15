"""Guards taken away, one at a time, in the engine's own process: the text is wrong, or there is none."""

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from services.steerer.tests.conftest import standing_still
from services.steerer.tests.engine.conftest import STRONG, generate, in_worker, many_settings, texts
from tests.waiting import until

from poolbench.errors import ReceiptError
from poolbench_steerer.engine import Generation, GenerationRequest
from poolbench_steerer.errors import BankFullError
from poolbench_steerer.plugin.bank import VectorBank
from poolbench_steerer.plugin.spec import Edit, Steering

pytestmark = pytest.mark.lane(name="engines")

NOT_CAPTURED = pytest.mark.skipif(torch.cuda.is_available(), reason="a captured CUDA graph keeps the original op")


def unplaced_chunks(worker: Any) -> None:
    """Takes every chunk of a prompt for its beginning."""
    assign = worker.steering.rows.assign
    worker.steering.rows.assign = lambda ids, starts, computed: assign(ids, starts, computed * 0)


def swapped_requests(worker: Any) -> None:
    """Takes each request of a batch for the next one."""
    assign = worker.steering.rows.assign
    worker.steering.rows.assign = lambda ids, starts, computed: assign(
        [*ids[1:], *ids[:1]], starts, np.roll(computed, -1)
    )


def unwatched_preemptions(worker: Any) -> None:
    """Counts positions that are computed again as if they were new."""
    account = worker.steering.rows._account

    def forgetful(*arguments: Any) -> bool:
        account(*arguments)
        return False

    worker.steering.rows._account = forgetful


def restore_rows(worker: Any) -> None:
    vars(worker.steering.rows).pop("assign", None)
    vars(worker.steering.rows).pop("_account", None)


def hooks_compiled_away(worker: Any) -> None:
    from poolbench_steerer.plugin import operators

    operators.saved_steer_tokens = operators.steer_tokens
    operators.steer_tokens = lambda *arguments: None


def one_half_of_the_pair(worker: Any) -> None:
    from poolbench_steerer.plugin import operators

    operators.saved_steer_tokens = operators.steer_tokens
    operators.steer_tokens = lambda hidden, residual, state, layer: operators.saved_steer_tokens(
        hidden, None, state, layer
    )


def both_halves_of_the_pair(worker: Any) -> None:
    from poolbench_steerer.plugin import operators

    operators.saved_steer_tokens = operators.steer_tokens

    def twice(hidden: Any, residual: Any, state: Any, layer: int) -> None:
        operators.saved_steer_tokens(hidden, residual, state, layer)
        if residual is not None:
            operators.saved_steer_tokens(residual, hidden, state, layer)

    operators.steer_tokens = twice


def restore_op(worker: Any) -> None:
    from poolbench_steerer.plugin import operators

    operators.steer_tokens = operators.saved_steer_tokens


@asynccontextmanager
async def without(engine: Any, fault: Callable[[Any], None], restore: Callable[[Any], None]) -> Any:
    await in_worker(engine, fault)
    try:
        yield
    finally:
        await in_worker(engine, restore)


@pytest.mark.parametrize("fault", [unplaced_chunks, swapped_requests])
def test_tokens_given_to_the_wrong_request_or_position_fail_it(host, model_ref, requests, fault):
    """Among them prompts longer than a step takes, so that they come in chunks."""

    async def job(engine: Any) -> None:
        await engine.llm.reset_prefix_cache()
        async with without(engine, fault, restore_rows):
            with pytest.raises(ReceiptError, match="not applied as asked"):
                await engine.generate(requests[16:64:3])

    host.run(model_ref, job)
    assert len(generate(host, model_ref, requests[16:32])) == 16


@NOT_CAPTURED
def test_an_op_that_never_runs_fails_every_kind_of_request(host, model_ref, prompts, vector_ids):
    kinds = [
        Steering((Edit(vector_ids[0], 2, 1.0, operation),)) for operation in ("add", "clamp", "erase")
    ]  # compiled away by a hook added too late, say

    async def job(engine: Any) -> None:
        async with without(engine, hooks_compiled_away, restore_op):
            for steering in kinds:
                with pytest.raises(ReceiptError, match=r"positions changed by layer \{\}, expected \{2: 3\}"):
                    await engine.generate([GenerationRequest(prompts[0], 3, steering, ignore_eos=True)])

    host.run(model_ref, job)


@pytest.mark.parametrize("guarded", [True, False])
def test_preempted_requests_of_every_kind(host, model_ref, prompts, vector_ids, guarded):
    """The cache holds about 1,000 tokens; 16 requests that grow to 130 each don't fit at once."""
    settings = [steering for steering in many_settings(vector_ids, 6, STRONG, 20) if steering][:16]
    long = sum(prompts, ())
    requests = [GenerationRequest(long[i : i + 70], 60, s, ignore_eos=True) for i, s in enumerate(settings)]

    async def job(engine: Any) -> tuple[list[Any], int]:
        before = engine.num_repeated
        if guarded:
            made = await engine.generate(requests)
            return texts(made), engine.num_repeated - before
        async with without(engine, unwatched_preemptions, restore_rows):
            with pytest.raises(ReceiptError):
                await engine.generate(requests)
        return [], 1

    made, num_repeated = host.run(model_ref, job)
    assert num_repeated > 0
    if guarded:
        assert made[::5] == [texts(generate(host, model_ref, [request]))[0] for request in requests[::5]]


@pytest.mark.parametrize("guarded", [True, False])
def test_a_steered_answer_is_not_the_prefix_of_a_later_prompt(
    host, model_ref, prompts, vector_ids, monkeypatch, guarded
):
    """The later request is steered alike, but from its own last position on, so these tokens are not."""
    if not guarded:
        monkeypatch.setattr(Steering, "cache_salt", lambda self, num_prompt_tokens: "same edits, same selector")
    steering = Steering((Edit(vector_ids[2], 1, 0.5 * STRONG),))
    first = GenerationRequest(sum(prompts, ())[:40], 64, steering, ignore_eos=True)

    async def job(engine: Any) -> tuple[Any, Any]:
        await engine.llm.reset_prefix_cache()
        (answer,) = await engine.generate([first])
        ids = first.prompt_ids + answer.token_ids
        second = GenerationRequest(ids, 1, steering, ignore_eos=True, logprobs=20)
        (after,) = await engine.generate([second])
        await engine.llm.reset_prefix_cache()
        (clean,) = await engine.generate([second])
        await engine.llm.reset_prefix_cache()
        return clean.first_logprobs, after.first_logprobs

    clean, after = host.run(model_ref, job)
    gap = max(abs(clean[token] - after.get(token, -99.0)) for token in clean)
    assert gap < 1e-4 if guarded else gap > 1e-2


@pytest.mark.parametrize("positions", ["all", "prompt", 3])
@pytest.mark.parametrize("guarded", [True, False])
def test_steered_prompts_are_computed_not_read_from_the_cache(
    host, model_ref, prompts, vector_ids, monkeypatch, guarded, positions
):
    if not guarded:
        monkeypatch.setattr(Steering, "steers_prompt", lambda self, num_prompt_tokens: False)
    steering = Steering((Edit(vector_ids[2], 1, 1.0, "erase"),), positions)
    request = GenerationRequest(sum(prompts, ())[:100], 2, steering, ignore_eos=True)

    async def job(engine: Any) -> list[Generation]:
        await engine.llm.reset_prefix_cache()
        return [(await engine.generate([request]))[0] for _ in range(2)]

    if guarded:
        first, second = host.run(model_ref, job)
        assert first.token_ids == second.token_ids
        assert first.receipt == second.receipt
    else:
        with pytest.raises(ReceiptError, match="skipped"):
            host.run(model_ref, job)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_vector_in_use_is_not_evicted(host, model_ref, prompts, vector_ids, unit_vectors, monkeypatch, guarded):
    request = GenerationRequest(prompts[15], 100, Steering((Edit(vector_ids[6], 3, STRONG),)), ignore_eos=True)
    right = texts(generate(host, model_ref, [request]))
    others = list(np.random.default_rng(11).standard_normal((64, 256)).astype(np.float32))
    if not guarded:

        @contextmanager
        def unprotected(self: VectorBank, keys: Any, *, confidential: bool = False) -> Any:
            yield {key: self.entry(key).slot for key in keys}

        monkeypatch.setattr(VectorBank, "in_use", unprotected)

    async def job(engine: Any) -> Any:
        with standing_still(host):
            running = asyncio.create_task(engine.generate([request]))
            await until(lambda: engine.rows_in_use == 1)
            registering = asyncio.create_task(engine.register(others))
            await asyncio.sleep(0)
        if guarded:
            with pytest.raises(BankFullError):
                await registering
        else:
            await registering
        return texts(await running)

    found = host.run(model_ref, job)
    host.run(model_ref, lambda engine: engine.register(list(unit_vectors)))
    assert (found == right) is guarded
