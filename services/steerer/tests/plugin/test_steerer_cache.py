"""Which cache blocks are cleared, and that nothing else is."""

from types import SimpleNamespace
from typing import Any

import torch

from poolbench_steerer.plugin.runner import clear_blocks, new_blocks, prepare_clearing

#: Two groups of layers with blocks of 4 and 8 tokens, and one whose blocks hold no keys and values.
SIZES = [4, 8, None]


def scheduled(new: list[Any], running: list[tuple[str, Any, int]], resumed: set[str]) -> SimpleNamespace:
    ids, blocks, computed = (list(column) for column in zip(*running, strict=True)) if running else ([], [], [])
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(block_ids=blocks, num_computed_tokens=count) for blocks, count in new],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=ids, new_block_ids=blocks, num_computed_tokens=computed, resumed_req_ids=resumed
        ),
    )


def test_a_new_request_gets_all_blocks_cleared_but_those_of_the_prefix_cache():
    assert sorted(new_blocks(scheduled([(([1, 2, 3], [4, 5], [6]), 0)], [], set()), SIZES)) == [1, 2, 3, 4, 5]
    assert sorted(new_blocks(scheduled([(([1, 2, 3], [4, 5], [6]), 8)], [], set()), SIZES)) == [3, 5]


def test_a_running_request_gets_added_blocks_cleared_and_a_resumed_one_all_that_it_must_compute():
    running = [("a", ([7], [], []), 12), ("b", None, 3), ("c", ([1, 2, 3], [4, 5], [6]), 8)]
    assert sorted(new_blocks(scheduled([], running, {"c"}), SIZES)) == [3, 5, 7]


def test_clearing_touches_these_blocks_of_every_layer_only():
    caches = [torch.full((12, 2, 3), float("nan")), torch.full((6, 5), float("inf")), ["not a tensor"]]
    clear_blocks(caches, num_blocks=6, block_ids=[1, 4])  # the first layer has two small blocks in each block
    assert caches[0].view(6, -1).isfinite().all(dim=1).tolist() == [False, True, False, False, True, False]
    assert caches[1].isfinite().all(dim=1).tolist() == [False, True, False, False, True, False]


def test_gpus_clear_with_vllms_own_kernel():
    """For most models vLLM sets it up only on request."""
    calls: list[str] = []
    runner = SimpleNamespace(_init_kv_zero_meta=lambda: calls.append("set up"), _zero_block_ids="vLLM's own")
    prepare_clearing(runner, 6, torch.device("cuda"))
    assert (calls, runner._zero_block_ids) == (["set up"], "vLLM's own")
