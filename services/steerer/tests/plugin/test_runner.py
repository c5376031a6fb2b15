"""What the plug-in does in vLLM's model runner: blocks of the cache that are cleared, and modules that are found."""

import ast
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from poolbench_steerer.plugin.runner import adds_second, clear_blocks, final_norm, fuses, new_blocks, prepare_clearing

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


def test_requests_get_the_blocks_cleared_that_they_must_compute():
    assert sorted(new_blocks(scheduled([(([1, 2, 3], [4, 5], [6]), 0)], [], set()), SIZES)) == [1, 2, 3, 4, 5]
    assert sorted(new_blocks(scheduled([(([1, 2, 3], [4, 5], [6]), 8)], [], set()), SIZES)) == [3, 5]
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


def test_the_final_norm_is_the_models_own_not_a_blocks():
    block = torch.nn.Module()
    block.norm = torch.nn.LayerNorm(2)
    inner = torch.nn.Module()
    inner.layers = torch.nn.ModuleList([block])
    inner.norm = torch.nn.LayerNorm(2)
    model = torch.nn.Module()
    model.model = inner
    assert final_norm(model) is inner.norm
    with pytest.raises(RuntimeError, match="no final norm"):
        final_norm(block.norm)


#: Blocks of vLLM that add the residual themselves, and blocks that leave it to the next norm.
WHOLE = {"stablelm.py": "StablelmDecoderLayer", "commandr.py": "CohereDecoderLayer", "phimoe.py": "PhiMoEDecoderLayer",
         "exaone4.py": "Exaone4DecoderLayer"}  # fmt: skip


FUSED = {"llama.py": "LlamaDecoderLayer", "gemma2.py": "Gemma2DecoderLayer", "gemma3.py": "Gemma3DecoderLayer",
         "qwen2.py": "Qwen2DecoderLayer", "mixtral.py": "MixtralDecoderLayer"}  # fmt: skip


@pytest.mark.parametrize(("file", "block"), [*WHOLE.items(), *FUSED.items()])
def test_whether_the_pair_of_a_block_is_to_be_added_follows_from_its_code(file, block):
    spec = find_spec("vllm")
    models = Path(spec.origin).parent / "model_executor" / "models"
    source = (models / file).read_text("utf-8")
    (found,) = (each for each in ast.parse(source).body if getattr(each, "name", "") == block)
    forward = next(each for each in found.body if getattr(each, "name", "") == "forward")
    assert adds_second(ast.get_source_segment(source, forward)) is (file in WHOLE)


def test_blocks_that_return_one_tensor_or_have_no_source_are_taken_as_they_are():
    assert fuses(torch.nn.Linear(2, 2))
    namespace = {"torch": torch}
    exec("class Block(torch.nn.Module):\n  def forward(self, x, r):\n    x = x + r\n    return x, r", namespace)
    assert fuses(namespace["Block"]())
