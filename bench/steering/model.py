"""Models with random weights, saved so that vLLM and Transformers load them as they load any other."""

import json
import shutil
from pathlib import Path

import torch
from extraction.inputs import LLAMA_8B, Shape, random_llama

from poolbench.config import ModelRef, asset_path

SHAPES = {
    "llama-3.1-8b": LLAMA_8B,
    "llama-3.2-1b": Shape(2048, 8192, 16, 32, 8, 128256, "bfloat16"),
    "tiny": Shape(256, 512, 4, 4, 2, 4096),
}


def random_model(folder: Path, shape: Shape, device: str) -> ModelRef:
    """Save a Llama of this shape with weights drawn on the device and the demo model's tokenizer.

    These are real files, because vLLM's dummy weights are so small that no next-token probability differs from
    another: the engine's self-test could not distinguish steered from unsteered text.
    """
    model = random_llama(shape, device, bos_token_id=0, eos_token_id=1)
    model.save_pretrained(folder, max_shard_size="4GB")
    del model
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(asset_path("demo_lm") / name, folder / name)
    return ModelRef("random", str(folder), None, shape.dtype, json.dumps(vars(shape)))
