"""Hooks into vLLM's model runners: batches, seeded sampling, and cleared cache blocks."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

#: (request ids, first token of each and the end [requests + 1], positions of these tokens in their requests)
OnBatch = Callable[[Sequence[str], np.ndarray, np.ndarray], None]


def watch_batches(runner: Any, on_batch: OnBatch) -> str:
    """Make a model runner of vLLM call `on_batch` before every forward pass. Return the version of the runner."""
    if hasattr(runner, "_model_forward"):
        forward = runner._model_forward

        def steered_forward(*args: Any, **kwargs: Any) -> Any:
            batch = runner.input_batch
            count = batch.num_reqs
            on_batch(
                batch.req_ids[:count], runner.query_start_loc.np[: count + 1], batch.num_computed_tokens_cpu[:count]
            )
            return forward(*args, **kwargs)

        runner._model_forward = steered_forward
        return "v1"
    prepare = runner.prepare_inputs

    def steered_prepare(*args: Any, **kwargs: Any) -> Any:
        batch = prepare(*args, **kwargs)
        count = len(batch.req_ids)
        on_batch(batch.req_ids, batch.query_start_loc_np[: count + 1], batch.num_computed_tokens_np[:count])
        return batch

    runner.prepare_inputs = steered_prepare
    return "v2"


def keep_generators(runner: Any) -> None:
    """Wrap the sampling of a runner so that discarded tokens do not change the generators of their requests.

    If a step computes only a part of a prompt, the first model runner of vLLM samples a token and discards it. The
    runner then sets the generator of the request back by one draw. CPU generators do not support this, and the engine
    would die. So the generators of such requests are removed during the step.
    """
    sample, bookkeeping = runner._sample, runner._bookkeeping_sync
    held: dict[int, Any] = {}

    def sample_without_discarded(*args: Any, **kwargs: Any) -> Any:
        generators = runner.input_batch.generators
        for index in np.flatnonzero(runner.discard_request_mask.np[: runner.input_batch.num_reqs]):
            if int(index) in generators:
                held[int(index)] = generators.pop(int(index))
        return sample(*args, **kwargs)

    def bookkeeping_and_restore(*args: Any, **kwargs: Any) -> Any:
        try:
            return bookkeeping(*args, **kwargs)
        finally:
            runner.input_batch.generators.update(held)
            held.clear()

    runner._sample, runner._bookkeeping_sync = sample_without_discarded, bookkeeping_and_restore


def prepare_clearing(runner: Any, num_blocks: int, device: torch.device) -> None:
    """Set up the clearing of cache blocks before a request uses them, once the cache is allocated.

    vLLM passes blocks from one request to the next with their contents. Attention gives positions beyond the request
    the weight 0, but 0 times NaN is NaN, so one broken state would spoil the block's next owner. vLLM fills its
    list of blocks to clear before a step for some models only. Here, it is filled for all models. On CPUs, vLLM clears
    some kinds of layers only, so its function is replaced.
    """
    if device.type == "cuda":
        runner._init_kv_zero_meta()
    else:
        runner._zero_block_ids = lambda block_ids: clear_blocks(runner.kv_caches, num_blocks, block_ids)


def clear_blocks(kv_caches: Sequence[Any], num_blocks: int, block_ids: list[int]) -> None:
    """Write zeros into the given blocks of every layer. On CPUs, a cache is contiguous, block after block."""
    blocks_N = torch.tensor(block_ids)
    for cache in kv_caches:
        if isinstance(cache, torch.Tensor):
            cache.view(num_blocks, -1).index_fill_(0, blocks_N, 0)


def block_sizes(kv_cache_config: Any) -> list[int | None]:
    """Return the number of tokens per block by layer group, or None if the blocks hold no keys and values."""
    from vllm.v1.kv_cache_interface import MambaSpec

    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    return [None if isinstance(spec, MambaSpec) else spec.block_size for spec in specs]


def new_blocks(scheduled: Any, sizes: Sequence[int | None]) -> Iterator[int]:
    """Yield the blocks that requests got for this step, except blocks with computed tokens (prefix cache)."""
    for request in scheduled.scheduled_new_reqs:
        yield from _beyond(request.block_ids, request.num_computed_tokens, sizes)
    running = scheduled.scheduled_cached_reqs
    for request_id, blocks, computed in zip(
        running.req_ids, running.new_block_ids, running.num_computed_tokens, strict=True
    ):
        if blocks is not None:  # all blocks of a request resumed after preemption, else the added ones
            resumed = request_id in running.resumed_req_ids
            yield from _beyond(blocks, computed if resumed else 0, sizes)


def _beyond(blocks: Sequence[Sequence[int]], num_computed: int, sizes: Sequence[int | None]) -> Iterator[int]:
    for group, size in zip(blocks, sizes, strict=True):
        if size is not None:
            yield from group[num_computed // size :]
