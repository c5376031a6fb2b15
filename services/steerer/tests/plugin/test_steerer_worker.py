"""What the worker does beside steering: it ends with its owner, and finds the parts of a model."""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tests.waiting import PATIENCE_S

from poolbench.errors import ReceiptError
from poolbench.settings import ProcessSettings
from poolbench_steerer.engine.rows import settle
from poolbench_steerer.plugin.runner import adds_second, final_norm, fuses

WATCHING = """
import time
from poolbench_steerer.plugin.worker import end_with_owner
end_with_owner(interval_s=0.1)
print("watching", flush=True)
time.sleep(600)
"""


def start(owner_id: int) -> subprocess.Popen[str]:
    environment = {**os.environ, ProcessSettings.variable("engine_owner"): str(owner_id)}
    return subprocess.Popen([sys.executable, "-c", WATCHING], env=environment, stdout=subprocess.PIPE, text=True)


def test_an_engine_process_ends_when_its_owner_is_killed():
    owner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    engine = start(owner.pid)
    assert engine.stdout is not None and engine.stdout.readline() == "watching\n"
    assert engine.poll() is None
    owner.kill()  # stays a zombie until it is waited for, which must be enough
    assert engine.wait(timeout=PATIENCE_S) == 1
    owner.wait()


def test_an_engine_process_whose_owner_is_gone_ends_at_once():
    owner = subprocess.Popen([sys.executable, "-c", ""])
    owner.wait()
    assert start(owner.pid).wait(timeout=PATIENCE_S) == 1


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


@pytest.mark.parametrize("second", [6, 14])
def test_tensor_parallel_workers_must_have_counted_the_same(second):
    """A worker that missed a position, or steered its share as if it were the whole, differs from the others."""

    def reply(changed: int) -> dict[str, object]:
        return {"layers": [[2, [changed, 0, 0, 0]]], "repeated": 0, "skipped": 0, "stray": 0, "broken": []}

    async def resolved(*counts: int) -> object:
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        settle(future, [reply(count) for count in counts])
        return await future

    assert asyncio.run(resolved(7, 7)).layers[2].changed == 7
    with pytest.raises(ReceiptError, match="workers disagree"):
        asyncio.run(resolved(7, second))


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
