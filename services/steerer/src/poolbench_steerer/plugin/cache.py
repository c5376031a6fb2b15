"""Cache blocks are cleared before a request uses them.

vLLM hands blocks from one request to the next with their contents. Attention reads a whole block and gives positions
beyond the request the weight 0; but 0 times NaN is NaN, so one broken state would spoil the block's next owner. vLLM
has a list of blocks to clear before a step, which it fills for some models only; here it is filled for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch


def prepare_clearing(runner: Any, num_blocks: int, device: torch.device) -> None:
    """Sets up what clears blocks, once the cache is allocated.

    On CPUs vLLM clears some kinds of layers only, so its way is replaced.
    """
    if device.type == "cuda":
        runner._init_kv_zero_meta()
    else:
        runner._zero_block_ids = lambda block_ids: clear_blocks(runner.kv_caches, num_blocks, block_ids)


def clear_blocks(kv_caches: Sequence[Any], num_blocks: int, block_ids: list[int]) -> None:
    """Writes zeros into these blocks of every layer; on CPUs a cache is contiguous, block after block."""
    blocks_N = torch.tensor(block_ids)
    for cache in kv_caches:
        if isinstance(cache, torch.Tensor):
            cache.view(num_blocks, -1).index_fill_(0, blocks_N, 0)


def block_sizes(kv_cache_config: Any) -> list[int | None]:
    """Tokens of a block by group of layers; None for a group whose blocks hold no keys and values."""
    from vllm.v1.kv_cache_interface import MambaSpec

    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    return [None if isinstance(spec, MambaSpec) else spec.block_size for spec in specs]


def new_blocks(scheduled: Any, sizes: Sequence[int | None]) -> Iterator[int]:
    """The blocks that requests got for this step; those with computed tokens (prefix cache) are left alone."""
    for request in scheduled.scheduled_new_reqs:
        yield from _beyond(request.block_ids, request.num_computed_tokens, sizes)
    running = scheduled.scheduled_cached_reqs
    for request_id, blocks, computed in zip(
        running.req_ids, running.new_block_ids, running.num_computed_tokens, strict=True
    ):
        if blocks is not None:  # of a request that comes back after a preemption all blocks, else added ones
            resumed = request_id in running.resumed_req_ids
            yield from _beyond(blocks, computed if resumed else 0, sizes)


def _beyond(blocks: Sequence[Sequence[int]], num_computed: int, sizes: Sequence[int | None]) -> Iterator[int]:
    for group, size in zip(blocks, sizes, strict=True):
        if size is not None:
            yield from group[num_computed // size :]
