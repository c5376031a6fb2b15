"""How long the workers that share a model take to sum hidden states: what several GPUs cost beside one."""

from typing import Any

import numpy as np

from poolbench_steerer.engine.engine import SteeringEngine

#: Tokens of the batch whose states are summed: as many texts, one new token each.
_NUM_TOKENS = 256


async def measure_all_reduce(engine: SteeringEngine) -> dict[str, Any] | None:
    """Return the figures of `AllReduce` (http/answers.py), or None if one worker holds the model."""
    config = engine.llm.vllm_config
    if (num_workers := config.parallel_config.tensor_parallel_size) == 1:
        return None
    taken_s = await engine.llm.collective_rpc("steering_all_reduce", args=(_NUM_TOKENS,))
    return {
        "num_workers": num_workers,
        "num_tokens": _NUM_TOKENS,
        "num_bytes": _NUM_TOKENS * config.model_config.get_hidden_size() * config.model_config.dtype.itemsize,
        "median_s": float(np.median(taken_s, axis=1).max()),
    }
