"""A host without an engine: nothing to load yet, or nothing that can be loaded."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from poolbench.config import ModelRef, resolve_model
from poolbench.errors import ModelError
from poolbench_steerer.host import EngineHost
from poolbench_steerer.host.host import LoopThread


def test_a_folder_that_holds_no_model_is_a_model_error(steerer_config: Any, tmp_path: Path) -> None:
    host = EngineHost(steerer_config)
    try:
        with pytest.raises(ModelError, match=f"model {tmp_path} cannot be loaded"):
            host.run(resolve_model(str(tmp_path)), lambda engine: engine.register([]))
        assert host.health()["state"] == "idle"
    finally:
        host.close()


def saved(folder: Path, weights: dict[str, Any] | None = None) -> ModelRef:
    """A small Llama with these weights, or all of its own."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=64, tie_word_embeddings=False, **sizes)).save_pretrained(folder)
    if weights is not None:
        own = load_file(folder / "model.safetensors")
        kept = {new: own[old] for old, new in weights.items()}
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return resolve_model(str(folder))


def test_a_folder_that_changed_since_its_revision_was_taken_starts_no_engine(
    steerer_config: Any, tmp_path: Path
) -> None:
    ref, host = saved(tmp_path / "m"), EngineHost(steerer_config)
    weights = bytearray((tmp_path / "m" / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "m" / "model.safetensors").write_bytes(weights)
    try:
        with pytest.raises(ModelError, match=f"asked for {ref.revision}; plan the run again"):
            host.run(ref, lambda engine: engine.register([]))
    finally:
        host.close()


def test_a_host_without_jobs_closes_at_once_and_once_only(steerer_config: Any) -> None:
    host = EngineHost(steerer_config)
    assert host.health() == {"state": "idle", "restarts": 0, "jobs": 0, "ready": False}
    host.close()
    host.close()


def test_a_loop_that_is_stopped_leaves_no_socket_open() -> None:
    thread = LoopThread("test")
    loop = thread.run(running_loop())
    thread.stop()
    assert loop.is_closed() and not thread.alive


async def running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
