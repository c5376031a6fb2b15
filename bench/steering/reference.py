"""The reference code: Transformers, one prompt at a time, its hook registered again for each."""

import time
from typing import Any

import numpy as np

from poolbench.config import ModelRef
from steering.batches import ALPHA, Sizes, prompts, unit_vectors


def reference_rate(model: ModelRef, sizes: Sizes, num_prompts: int) -> float:
    """Return new tokens per second, on the GPU if there is one."""
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    decoder: Any = AutoModelForCausalLM.from_pretrained(model.source, dtype=getattr(torch, model.dtype)).eval()
    decoder.to(device)
    vectors = unit_vectors(np.random.default_rng(0), num_prompts, decoder.config.hidden_size)
    prompt_texts = prompts(sizes)
    _generate(decoder, prompt_texts[0], sizes.tokens, 0, vectors[0])  # warms up
    began = time.perf_counter()
    for index, vector in enumerate(vectors):
        _generate(decoder, prompt_texts[index % len(prompt_texts)], sizes.tokens, index, vector)
    return num_prompts * sizes.tokens / (time.perf_counter() - began)


def _generate(decoder: Any, prompt: tuple[int, ...], num_tokens: int, index: int, vector: np.ndarray) -> None:
    import torch

    layers, device = decoder.model.layers, decoder.device
    delta = torch.tensor(vector, dtype=decoder.dtype, device=device) * ALPHA
    handle = layers[index % len(layers)].register_forward_hook(_adding(delta))
    ids = torch.tensor([prompt], device=device)
    with torch.inference_mode():
        decoder.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
            max_new_tokens=num_tokens, min_new_tokens=num_tokens,
        )  # fmt: skip
    handle.remove()


def _adding(delta: Any) -> Any:
    """Return a forward hook that adds `delta` to a block's output."""

    def hook(_module: Any, _inputs: Any, output: Any) -> Any:
        return (output[0] + delta, *output[1:]) if isinstance(output, tuple) else output + delta

    return hook
