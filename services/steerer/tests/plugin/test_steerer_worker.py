"""What the worker does beside steering: it ends with its owner, and finds the parts of a model."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest
import torch
from tests.waiting import PATIENCE_S

from poolbench.errors import ReceiptError
from poolbench.settings import ProcessSettings
from poolbench_steerer.engine.rows import settle
from poolbench_steerer.plugin.runner import final_norm

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
