"""GPU memory of an engine that shares its device with other services."""

from __future__ import annotations

from typing import Any

from poolbench.config import ModelRef
from poolbench.machine.gpu import SharedGpu, engine_share, shared_gpu
from poolbench.settings import SteererSettings

#: Beside weights and KV cache: activations of one step, the device bank, and captured graphs.
_WORKING_BYTES = 2 * 2**30
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def with_room(model: ModelRef, config: SteererSettings) -> SteererSettings:
    """Return the settings with the share of a shared GPU that the engine may take now; wait until it has enough.

    Raises:
        GpuBusyError: Other services kept the memory for an hour.
    """
    gpu = shared_gpu("steerer")
    return config if gpu is None else fitted(model, config, gpu)


def fitted(model: ModelRef, config: SteererSettings, gpu: SharedGpu) -> SteererSettings:
    """Return the settings with the share of this GPU that is free."""
    needed = needed_bytes(model, config)
    most = config.gpu_memory_share
    share = gpu.wait_until(lambda memory: engine_share(memory, needed, gpu.claimed(), most), needed)
    return config.model_copy(update={"gpu_memory_share": share})


def needed_bytes(model: ModelRef, config: SteererSettings) -> int:
    """Return the bytes without which an engine cannot work: weights, one window of KV cache, and working memory."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {"revision": None if model.is_local else model.revision, "trust_remote_code": config.trust_remote_code}
    described = AutoConfig.from_pretrained(model.source, **settings)
    with torch.device("meta"):
        model_skeleton = AutoModelForCausalLM.from_config(described, trust_remote_code=config.trust_remote_code)
    per_number = _BYTES.get(model.dtype, 4)
    weights = per_number * sum(parameter.numel() for parameter in model_skeleton.parameters())
    cache = int((config.kv_cache_gib or 0) * 2**30) or per_number * _cached_numbers(described.get_text_config(), config)
    return (weights + cache) // config.tensor_parallel + _WORKING_BYTES


def _cached_numbers(described: Any, config: SteererSettings) -> int:
    """Return the keys and values of one text as long as the window."""
    heads = getattr(described, "num_key_value_heads", None) or described.num_attention_heads
    width = getattr(described, "head_dim", None) or described.hidden_size // described.num_attention_heads
    window = config.max_model_len or described.max_position_embeddings
    return 2 * int(described.num_hidden_layers * heads * width * window)
